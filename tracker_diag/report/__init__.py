"""What a person reads: tables, pictures, the HTML report and the verdict in the terminal."""

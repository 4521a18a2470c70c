"""Runs the tests in several processes: `pytest --workers 4`. conftest.py hands these hooks to pytest.

The tests are collected once, and each worker is a fork that has them. What they import takes half a minute of a core;
workers that start as new processes would each spend it anew.
"""

import os
import threading
from multiprocessing import get_context
from multiprocessing.connection import wait

import pytest

from tests.order import units

FORK = get_context("fork")


def pytest_addoption(parser):
    parser.addoption("--workers", type=int, default=1, help="how many processes run the tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    workers = session.config.option.workers
    if workers < 2 or session.config.option.collectonly or session.testsfailed or len(session.items) < workers:
        return None  # as pytest does without us
    if (threads := threading.active_count()) != 1:
        raise pytest.UsageError(f"{threads} threads run once the tests are collected, 1 expected: a fork has one")
    Crew(session, workers).run()
    return True


class Crew:
    """The workers, and who has what: each takes the next unit of tests when it is done with the one before."""

    def __init__(self, session, workers):
        self.session, self.config = session, session.config
        self.units = units(session.items)
        self.taken = FORK.Value("i", 0)
        self.running = {}  # connection: (process, tests that it has taken and not reported)
        self.folder = self.config._tmp_path_factory.getbasetemp()
        self.started = 0
        for _ in range(workers):
            self.start()

    def start(self):
        here, there = FORK.Pipe(duplex=False)
        self.started += 1
        process = FORK.Process(target=Worker(self, there).run, args=(self.folder / f"worker{self.started}",))
        process.start()
        there.close()
        self.running[here] = process, []

    def next_unit(self):
        with self.taken.get_lock():
            self.taken.value += 1
            return self.units[self.taken.value - 1] if self.taken.value <= len(self.units) else []

    def run(self):
        try:
            while self.running:
                for connection in wait(self.running):
                    self.receive(connection)
                if self.session.shouldfail or self.session.shouldstop:
                    raise self.session.Failed(self.session.shouldfail or self.session.shouldstop)
        finally:
            for process, _ in self.running.values():
                process.terminate()

    def receive(self, connection):
        process, open_tests = self.running[connection]
        hook = self.config.hook
        try:
            kind, value = connection.recv()
        except EOFError:
            process.join()
            del self.running[connection]
            self.lost(process, open_tests)
            return
        if kind == "unit":
            open_tests += value
        else:
            report = hook.pytest_report_from_serializable(config=self.config, data=value)
            if report.when == "teardown":
                open_tests.remove(report.nodeid)
            hook.pytest_runtest_logreport(report=report)

    def lost(self, process, open_tests):
        """A worker that has died: the test that it ran has failed, others that it had taken have not been run."""
        for nodeid in open_tests:
            text = f"not run to its end: its worker ended with {process.exitcode}, in {open_tests[0]}"
            file, _, name = nodeid.partition("::")
            report = pytest.TestReport(nodeid, (file, None, name), {}, "failed", text, "call")
            self.config.hook.pytest_runtest_logreport(report=report)
        if open_tests and self.taken.value < len(self.units):
            self.start()


class Worker:
    """One process that runs tests, and sends their reports. It is made before the fork, and runs after it."""

    def __init__(self, crew, connection):
        self.crew, self.session, self.config, self.connection = crew, crew.session, crew.config, connection

    def pytest_runtest_logreport(self, report):
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.connection.send(("report", data))

    def run(self, folder):
        self.be_a_worker(folder)
        self.run_units()

    def be_a_worker(self, folder):
        """Nothing that was opened before the fork is written to: the screen, what captures output, the folder."""
        for connection in self.crew.running:
            connection.close()
        plugins = self.config.pluginmanager
        reporter, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
        plugins.unregister(reporter)
        reporter._tw._file = open(os.devnull, "w")  # noqa: PTH123, SIM115  # to the end of the process
        plugins.register(Silent(reporter), "terminalreporter")
        plugins.register(self, "worker")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        folder.mkdir()
        self.config._tmp_path_factory._basetemp = folder

    def take(self):
        taken = self.crew.next_unit()
        self.connection.send(("unit", [item.nodeid for item in taken]))
        return taken

    def run_units(self):
        """The next unit is taken before the last test of this one is run: its fixtures may serve it too."""
        queue = self.take()
        while queue:
            item, *queue = queue
            queue = queue or self.take()
            following = queue[0] if queue else None
            self.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


class Silent:
    """What plugins ask the terminal's reporter for, in a process that reports to another."""

    def __init__(self, reporter):
        self._tw = reporter._tw

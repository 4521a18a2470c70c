/* One pass over the log-ratios r = new - old of a batch: the bins of its sketch, and the sums of its weights.

   A batch is given as segments: tokens next to each other that are of one sequence and one row of most partitions.
   Sums are added in eight lanes, in one order, and without fused operations, so all processors give the same bits.
   Loops are plain, for the compiler to turn into operations on several values. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define BINS 4098
#define BASE (((-24 + 127) << 7) - 1)
#define BLOCK 512           /* tokens whose temporaries stay in the fastest cache */
#define SMALL 0x40800000u   /* 4.0 as bits: weights of such log-ratios need no common factor */
#define INFINITE 0x7f800000u

#if defined(__x86_64__) && defined(__GLIBC__)
#define FASTEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FASTEST
#endif

/* Sums over one row: n, the largest r, and relative to it the sums of w and w^2; then those of r, r^2 and k3. */
typedef struct { double n, largest, first, second, total, squares, k3; } sums_t;

/* The same of a block, of e = w - 1, which is not relative to anything. */
typedef struct { double largest, excess, squared, total, squares, k3; } block_t;

int kernel_version(void) { return 1; }

static inline double added(const double *x) { return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])); }

/* exp(x) - 1 for |x| < 4, and exp(x) - 1 - x without cancellation: exp(x) = 2^k exp(f), |f| <= ln 2 / 2, by its series. */
static inline __attribute__((always_inline)) void expm1_of(double x, double *e, double *less_x) {
    const double magic = 6755399441055744.0; /* 1.5 * 2^52: what is added to it is rounded to a whole number */
    double shifted = x * 1.4426950408889634 + magic, k = shifted - magic, two_k;
    double f = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    int64_t bits;
    memcpy(&bits, &shifted, 8);
    bits = (int64_t)((uint64_t)bits << 52) + 0x3ff0000000000000;
    memcpy(&two_k, &bits, 8);
    double q = f * (1 / 6227020800.0) + 1 / 479001600.0;
    q = q * f + 1 / 39916800.0;
    q = q * f + 1 / 3628800.0;
    q = q * f + 1 / 362880.0;
    q = q * f + 1 / 40320.0;
    q = q * f + 1 / 5040.0;
    q = q * f + 1 / 720.0;
    q = q * f + 1 / 120.0;
    q = q * f + 1 / 24.0;
    q = q * f + 1 / 6.0;
    q = q * f + 0.5;
    q = q * (f * f);
    double scaled = two_k * q + (two_k * f + (two_k - 1.0));
    *e = k == 0.0 ? q + f : scaled;
    *less_x = k == 0.0 ? q : scaled - x;
}

/* The sums over r (n), all of them below 4 in size; room for a last group of eight is behind them. */
static inline __attribute__((always_inline)) block_t small_block(double *restrict r, int64_t n, int drift) {
    double excess[8] = {0}, squared[8] = {0}, total[8] = {0}, squares[8] = {0}, k3[8] = {0}, e[BLOCK + 8], less[BLOCK + 8];
    double largest[8];
    for (int64_t l = 0; l < 8; l++) largest[l] = r[0];
    for (int64_t i = 0; i + 8 <= n; i += 8)
        for (int64_t l = 0; l < 8; l++) largest[l] = r[i + l] > largest[l] ? r[i + l] : largest[l];
    for (int64_t i = n & ~7; i < n; i++) largest[0] = r[i] > largest[0] ? r[i] : largest[0];
    for (int64_t l = 1; l < 8; l++) largest[0] = largest[l] > largest[0] ? largest[l] : largest[0];
    for (int64_t i = n; i < ((n + 7) & ~7); i++) r[i] = 0.0; /* adds nothing to any sum */
    if (drift)
        for (int64_t i = 0; i < ((n + 7) & ~7); i++) {
            expm1_of(-r[i], e + i, less + i);
            e[i] = -e[i] / (1.0 + e[i]);
        }
    else
        for (int64_t i = 0; i < ((n + 7) & ~7); i++) expm1_of(r[i], e + i, less + i);
    for (int64_t i = 0; i < n; i += 8)
        for (int64_t l = 0; l < 8; l++) {
            excess[l] += e[i + l];
            squared[l] += e[i + l] * e[i + l];
            total[l] += r[i + l];
            squares[l] += r[i + l] * r[i + l];
            k3[l] += less[i + l];
        }
    return (block_t){largest[0], added(excess), added(squared), added(total), added(squares), added(k3)};
}

static void raise(sums_t *s, double largest) {
    if (largest <= s->largest) return;
    double scale = exp(s->largest - largest); /* 0 where there was none */
    s->first *= scale; s->second *= scale * scale; s->largest = largest;
}

static void add_small(sums_t *s, const block_t *b, double n) {
    raise(s, b->largest);
    double scale = exp(-s->largest);
    s->n += n;
    s->first += scale * (n + b->excess);
    s->second += scale * scale * (n + 2 * b->excess + b->squared);
    s->total += b->total; s->squares += b->squares; s->k3 += b->k3;
}

/* The same of any r: NaN and inf are left out of the row, but not of what is returned, the sum of all. */
static double add_any(sums_t *s, const double *r, int64_t n, int drift) {
    double total = 0.0, largest = -INFINITY;
    for (int64_t i = 0; i < n; i++) if (isfinite(r[i]) && r[i] > largest) largest = r[i];
    raise(s, largest);
    for (int64_t i = 0; i < n; i++) {
        total += r[i];
        if (!isfinite(r[i])) continue;
        double w = exp(r[i] - s->largest), toward = drift ? -r[i] : r[i];
        s->n += 1; s->first += w; s->second += w * w;
        s->total += r[i]; s->squares += r[i] * r[i]; s->k3 += expm1(toward) - toward;
    }
    return total;
}

static inline __attribute__((always_inline)) void log_ratios(
    const void *restrict new, const void *restrict old, int wide, int64_t at, int64_t n, double *restrict r,
    float *restrict x) {
    if (wide) {
        const double *a = (const double *)new + at, *b = (const double *)old + at;
        for (int64_t i = 0; i < n; i++) { r[i] = a[i] - b[i]; x[i] = (float)r[i]; }
    } else {
        const float *a = (const float *)new + at, *b = (const float *)old + at;
        for (int64_t i = 0; i < n; i++) { x[i] = a[i] - b[i]; r[i] = x[i]; }
    }
}

/* The bin of each x (n), negative ones BINS further on; returns the largest size, as bits. */
static inline __attribute__((always_inline)) uint32_t bins(const float *restrict x, int64_t n, int32_t *restrict bin) {
    uint32_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        int32_t size = bits & 0x7fffffff, key = size >> 16;
        top = (uint32_t)size > top ? (uint32_t)size : top;
        key = key < BASE ? BASE : key;
        key = key > BASE + BINS - 1 ? BASE + BINS - 1 : key;
        bin[i] = key - BASE + (bits < 0 ? BINS : 0);
    }
    return top;
}

/* Count the bins (n) of tokens that are all of `row`, or each of its own of `rows`; a row of `size` is none. */
static inline __attribute__((always_inline)) void count(
    const int32_t *restrict bin, const float *restrict x, int64_t n, uint32_t top, uint32_t row,
    const int32_t *restrict rows, uint32_t size, int32_t *restrict counts, int64_t *restrict nonfinite) {
    for (int64_t i = 0; top >= INFINITE && i < n; i++) {
        uint32_t mine = rows ? (uint32_t)rows[i] : row;
        if (isfinite(x[i]) || mine >= size) continue;
        nonfinite[mine]++;
        counts[mine * (int64_t)(2 * BINS) + bin[i]]--; /* what is counted below */
    }
    if (!rows) {
        counts += row * (int64_t)(2 * BINS);
        for (int64_t i = 0; row < size && i < n; i++) counts[bin[i]]++;
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint32_t mine = rows[i];
        counts[(mine < size ? mine : size) * (int64_t)(2 * BINS) + bin[i]]++;
    }
}

/* Count the log-ratios of segments into partitions, and sum them up by `context` and by sequence.

   new, old         (N) float, or double where `wide`
   begin, end       (q) each the tokens of a segment
   context          (q) which of `sums` a segment belongs to
   sequence         (q) its sequence, of `sequences`
   rows             of each partition the rows of segments (q), or of tokens (N) where `by_token`
   counts           of each partition (size + 1, 2, BINS), to be added to; the last row is for tokens without one
   nonfinite        of each partition (size), to be added to
   sums             (contexts), to be added to
   of_sequences     (contexts, sequences), to be added to: the sum of r, NaN and inf with it */
FASTEST
void kernel_fold(const void *new, const void *old, int wide, int drift, int64_t q, const int64_t *begin,
                 const int64_t *end, const int64_t *context, const int64_t *sequence, int64_t sequences,
                 int partitions, const int32_t *const *rows, const uint8_t *by_token, const int64_t *sizes,
                 int32_t *const *counts, int64_t *const *nonfinite, sums_t *sums, double *of_sequences) {
    double r[BLOCK + 8];
    float x[BLOCK];
    int32_t bin[BLOCK];
    for (int64_t s = 0; s < q; s++) {
        for (int64_t at = begin[s]; at < end[s]; at += BLOCK) {
            int64_t n = end[s] - at < BLOCK ? end[s] - at : BLOCK;
            log_ratios(new, old, wide, at, n, r, x);
            uint32_t top = bins(x, n, bin);
            for (int d = 0; d < partitions; d++) {
                const int32_t *of_tokens = by_token[d] ? rows[d] + at : 0;
                count(bin, x, n, top, by_token[d] ? 0 : (uint32_t)rows[d][s], of_tokens, (uint32_t)sizes[d], counts[d],
                      nonfinite[d]);
            }
            double *of_sequence = of_sequences + context[s] * sequences + sequence[s];
            if (top < SMALL) {
                block_t block = small_block(r, n, drift);
                add_small(sums + context[s], &block, (double)n);
                *of_sequence += block.total;
            } else {
                *of_sequence += add_any(sums + context[s], r, n, drift);
            }
        }
    }
}

/* Count x (n) into partitions, of which `rows` has the row of each. */
FASTEST
void kernel_count(const float *x, int64_t n, int partitions, const int32_t *const *rows, const int64_t *sizes,
                  int32_t *const *counts, int64_t *const *nonfinite) {
    int32_t bin[BLOCK];
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t here = n - at < BLOCK ? n - at : BLOCK;
        uint32_t top = bins(x + at, here, bin);
        for (int d = 0; d < partitions; d++)
            count(bin, x + at, here, top, 0, rows[d] + at, (uint32_t)sizes[d], counts[d], nonfinite[d]);
    }
}

/* How many of counts (n) are not 0. */
FASTEST
int64_t kernel_filled(const int32_t *counts, int64_t n) {
    int64_t filled = 0;
    for (int64_t i = 0; i < n; i += 1 << 16) {
        int32_t here = 0; /* as wide as the counts, so that sixteen of them are looked at together */
        for (int64_t j = i; j < n && j < i + (1 << 16); j++) here += counts[j] != 0;
        filled += here;
    }
    return filled;
}

/* Move those to `index` and `count`, which have room for one more, and leave 0. */
FASTEST
void kernel_taken(int32_t *counts, int64_t n, int64_t *index, int64_t *count) {
    int64_t taken = 0;
    for (int64_t i = 0; i < n; i += 4) { /* n is a multiple of four, and most counts are 0 */
        int64_t both[2];
        memcpy(both, counts + i, sizeof both);
        if (!(both[0] | both[1])) continue;
        for (int64_t j = i; j < i + 4; j++) { /* without a branch, which nobody could foresee */
            index[taken] = j; count[taken] = counts[j];
            taken += counts[j] != 0;
        }
        memset(counts + i, 0, sizeof both);
    }
}

/* One pass over the log-ratios r = new - old of a batch: the bins of its sketch, and the sums of its weights.

   A batch is given as segments: tokens next to each other that are of one sequence and one row of most partitions.
   Sums are added in eight lanes, in one order, and without fused operations, so all processors give the same bits. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define BINS 4098
#define BASE (((-24 + 127) << 7) - 1)
#define BLOCK 512           /* tokens whose temporaries stay in the fastest cache */
#define PART 128            /* tokens that kernel_count takes at once, so that it waits for few cache lines */
#define AHEAD 512           /* kernel_count fetches a token so many tokens before it counts it */
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

int kernel_version(void) { return 4; }

/* Eight numbers that are worked on at once, and their bits. */
typedef double lanes __attribute__((vector_size(64)));
typedef int64_t lane_bits __attribute__((vector_size(64)));

static inline __attribute__((always_inline)) double added(const lanes *given) {
    lanes x = *given;
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

/* exp(x) - 1 for |x| < 4, and exp(x) - 1 - x without cancellation: exp(x) = 2^k exp(f), |f| <= ln 2 / 2, by its series. */
static inline __attribute__((always_inline)) void expm1_of(const lanes *x, lanes *e, lanes *less_x) {
    const double magic = 6755399441055744.0; /* 1.5 * 2^52: what is added to it is rounded to a whole number */
    lanes shifted = *x * 1.4426950408889634 + magic, k = shifted - magic;
    lanes f = (*x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10, g = f * f;
    lanes two_k = (lanes)(((lane_bits)shifted << 52) + 0x3ff0000000000000);
    lanes even = g * (1 / 479001600.0) + 1 / 3628800.0, odd = g * (1 / 6227020800.0) + 1 / 39916800.0;
    even = even * g + 1 / 40320.0;
    odd = odd * g + 1 / 362880.0;
    even = even * g + 1 / 720.0;
    odd = odd * g + 1 / 5040.0;
    even = even * g + 1 / 24.0;
    odd = odd * g + 1 / 120.0;
    even = even * g + 0.5;
    odd = odd * g + 1 / 6.0;
    lanes rest = two_k * ((odd * f + even) * g), first = two_k * f + (two_k - 1.0); /* of k = 0 it is x itself */
    *e = rest + first;
    *less_x = rest + (first - *x);
}

static inline __attribute__((always_inline)) double largest_of(const double *r, int64_t n) {
    lanes most = {0};
    most += -INFINITY;
    for (int64_t i = 0; i + 8 <= n; i += 8) {
        lanes x;
        memcpy(&x, r + i, sizeof x);
        lane_bits more = x > most;
        most = (lanes)(((lane_bits)x & more) | ((lane_bits)most & ~more));
    }
    double largest = most[0];
    for (int64_t l = 1; l < 8; l++) largest = most[l] > largest ? most[l] : largest;
    for (int64_t i = n & ~7; i < n; i++) largest = r[i] > largest ? r[i] : largest;
    return largest;
}

/* The sums over r (n), all of them below 4 in size; room for a last group of eight is behind them. */
static inline __attribute__((always_inline)) block_t small_block(double *restrict r, int64_t n, int drift) {
    lanes excess = {0}, squared = {0}, total = {0}, squares = {0}, k3 = {0};
    double largest = largest_of(r, n);
    for (int64_t i = n; i & 7; i++) r[i] = 0.0; /* adds nothing to any sum */
    for (int64_t i = 0; i < n; i += 8) {
        lanes x, toward, e, less;
        memcpy(&x, r + i, sizeof x);
        toward = drift ? -x : x;
        expm1_of(&toward, &e, &less);
        if (drift) e = -e / (1.0 + e);
        excess += e;
        squared += e * e;
        total += x;
        squares += x * x;
        k3 += less;
    }
    return (block_t){largest, added(&excess), added(&squared), added(&total), added(&squares), added(&k3)};
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

/* Add one to `counts` at each of `cell` (n). The cells come from another loop, so this one waits only for counts. */
static inline __attribute__((always_inline)) void add_ones(
    const int32_t *restrict cell, int64_t n, int32_t *restrict counts) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int64_t j = i; j < i + 8; j++) counts[(uint32_t)cell[j]]++;
    for (; i < n; i++) counts[(uint32_t)cell[i]]++;
}

/* Count the bins (n) of tokens that are all of `row`, or each of its own of `rows`; a row of `size` is none.
   There are fewer than 2^18 rows, so 32 bits hold the number of a cell. */
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
        if (row < size) add_ones(bin, n, counts + row * (int64_t)(2 * BINS));
        return;
    }
    int32_t cell[BLOCK];
    for (int64_t i = 0; i < n; i++) {
        uint32_t mine = rows[i], few = mine < size ? ~0u : 127; /* of the last row, few cells stay in the cache */
        cell[i] = (int32_t)((mine < size ? mine : size) * (2 * BINS) + (bin[i] & few));
    }
    add_ones(cell, n, counts);
}

/* Count the log-ratios of segments into partitions, and sum them up by `context` and by sequence.

   new, old         (N) float, or double where `wide`
   begin, end       (q) each the tokens of a segment
   context          (q) which of `sums` a segment belongs to
   sequence         (q) its sequence, of `sequences`
   rows             of each partition the rows of segments (q), or of tokens (N) where `by_token`
   counts           of each partition (size + 1, 2, BINS), to be added to; the last row, of what has none, is not read
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

/* exp of r (n), of what is beyond `limit` as of that; room for a last group of eight is behind both. */
static inline __attribute__((always_inline)) void weights(
    const double *restrict r, int64_t n, uint32_t top, double limit, double *restrict w) {
    if (top >= SMALL) {
        for (int64_t i = 0; i < n; i++) w[i] = exp(fmin(fmax(r[i], -limit), limit));
        return;
    }
    for (int64_t i = 0; i < n; i += 8) {
        lanes x, e, less;
        memcpy(&x, r + i, sizeof x);
        expm1_of(&x, &e, &less);
        e += 1.0;
        memcpy(w + i, &e, sizeof e);
    }
}

/* Add up what tokens of segments pull at the policy with: as `gradient_sums`, whose cells are `cells` of each context.

   advantages, by   (N) by what each is multiplied; `by` may be null
   share            (q) 1 over the tokens of a segment's sequence
   low, high        log-ratios at which clipping begins */
FASTEST
void kernel_pulls(const void *new, const void *old, int wide, int64_t q, const int64_t *begin, const int64_t *end,
                  const int64_t *context, const double *share, const double *advantages, const double *by, double low,
                  double high, double limit, double *cells) {
    double r[BLOCK + 8] = {0}, w[BLOCK + 8];
    float x[BLOCK];
    int32_t bin[BLOCK];
    for (int64_t s = 0; s < q; s++) {
        double number[8][6] = {{0}}, mass[8][6] = {{0}}, *sums = cells + 13 * context[s];
        for (int64_t at = begin[s]; at < end[s]; at += BLOCK) {
            int64_t n = end[s] - at < BLOCK ? end[s] - at : BLOCK;
            log_ratios(new, old, wide, at, n, r, x);
            weights(r, n, bins(x, n, bin), limit, w);
            for (int64_t i = 0; i < n; i++) {
                double a = advantages[at + i], pull = fabs(by ? a * by[at + i] : a);
                if (a == 0 || !isfinite(pull) || !isfinite(r[i])) continue;
                int cell = ((r[i] >= low) + (r[i] > high)) * 2 + (a > 0);
                number[i & 7][cell] += 1;
                mass[i & 7][cell] += pull * w[i];
            }
        }
        for (int cell = 0; cell < 6; cell++) {
            double of_cell = 0;
            for (int l = 0; l < 8; l++) {
                sums[cell] += number[l][cell];
                of_cell += mass[l][cell];
            }
            sums[6 + cell] += of_cell;
            if (cell != 0 && cell != 5) sums[12] += share[s] * of_cell; /* those two are clipped */
        }
    }
}

/* Add up the weights that the optimiser applied (N) to tokens of segments: as `applied_sums`, `sums` (contexts, 5). */
FASTEST
void kernel_applied(const void *new, const void *old, int wide, int64_t q, const int64_t *begin, const int64_t *end,
                    const int64_t *context, const double *applied, double modified, double limit, double *sums) {
    double r[BLOCK + 8] = {0}, w[BLOCK + 8];
    float x[BLOCK];
    int32_t bin[BLOCK];
    for (int64_t s = 0; s < q; s++) {
        double of_lane[8][5] = {{0}};
        for (int64_t at = begin[s]; at < end[s]; at += BLOCK) {
            int64_t n = end[s] - at < BLOCK ? end[s] - at : BLOCK;
            log_ratios(new, old, wide, at, n, r, x);
            weights(r, n, bins(x, n, bin), limit, w);
            for (int64_t i = 0; i < n; i++) {
                double a = applied[at + i], *mine = of_lane[i & 7];
                int finite = isfinite(a), both = finite && isfinite(r[i]);
                a = both ? a : 0.0;
                mine[0] += both;
                mine[1] += a;
                mine[2] += a * a;
                mine[3] += both && fabs(a - w[i]) > modified * w[i];
                mine[4] += !finite;
            }
        }
        for (int l = 0; l < 8; l++)
            for (int k = 0; k < 5; k++) sums[5 * context[s] + k] += of_lane[l][k];
    }
}

/* Add each of count (n), times `sign`, to `into` at its index. */
void kernel_add(int64_t *into, int64_t n, const int64_t *index, const int64_t *count, int64_t sign) {
    for (int64_t i = 0; i < n; i++) into[index[i]] += sign * count[i];
}

/* Bring 4-byte numbers (n) into the cache. The processor does not foresee their use, because it comes in parts. */
static inline __attribute__((always_inline)) void fetch(const void *numbers, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) __builtin_prefetch((const char *)numbers + 4 * i);
}

/* Count x (n) into partitions, of which `rows` has the row of each. */
FASTEST
void kernel_count(const float *x, int64_t n, int partitions, const int32_t *const *rows, const int64_t *sizes,
                  int32_t *const *counts, int64_t *const *nonfinite) {
    int32_t bin[PART];
    for (int d = 0; d < partitions; d++) {
        int64_t cells = sizes[d] * 2 * BINS;
        if (cells <= n) fetch(counts[d], cells); /* all in order come faster than one by one */
    }
    for (int64_t at = 0; at < n; at += PART) {
        int64_t here = n - at < PART ? n - at : PART, later = at + AHEAD;
        int whole = later + PART <= n;
        if (whole) fetch(x + later, PART);
        uint32_t top = bins(x + at, here, bin);
        for (int d = 0; d < partitions; d++) {
            if (whole) fetch(rows[d] + later, PART);
            count(bin, x + at, here, top, 0, rows[d] + at, (uint32_t)sizes[d], counts[d], nonfinite[d]);
        }
    }
}

/* Move those of counts (n) that are not 0 to `index` and `count`, which have room for all of them and one more; leave 0.
   Gives how many they are. */
int64_t kernel_taken(int32_t *counts, int64_t n, int64_t *index, int64_t *count) {
    int64_t taken = 0;
    for (int64_t i = 0; i < n; i += 16) { /* most counts are 0 */
        int64_t end = n - i < 16 ? n : i + 16, any = 1;
        if (end == i + 16) {
            lane_bits all;
            memcpy(&all, counts + i, sizeof all);
            any = (all[0] | all[1] | all[2] | all[3]) | (all[4] | all[5] | all[6] | all[7]);
        }
        if (!any) continue;
        for (int64_t j = i; j < end; j++) { /* without a branch, which nobody could foresee */
            index[taken] = j; count[taken] = counts[j];
            taken += counts[j] != 0;
        }
        memset(counts + i, 0, (end - i) * sizeof *counts);
    }
    return taken;
}

/* Of each group of tokens that has any, the bin of the quantile `level` of |r| over all others; to `bins`. Gives how many
   groups these are.

   groups      (g, rows, 2, BINS) counts, `stride` and `row_stride` numbers from one to the next
   cumulated   (BINS) of all groups together, of |r| */
int64_t kernel_without_each(const int64_t *groups, int64_t g, int64_t stride, int64_t rows, int64_t row_stride,
                            const int64_t *cumulated, double level, int64_t *bins) {
    int64_t held[BINS], with_tokens = 0;
    for (int64_t k = 0; k < g; k++) {
        int64_t sum = 0;
        memset(held, 0, sizeof held);
        for (int64_t row = 0; row < rows; row++) {
            const int64_t *above = groups + k * stride + row * row_stride, *below = above + BINS;
            for (int64_t b = 0; b < BINS; b++) held[b] += above[b] + below[b];
        }
        for (int64_t b = 0; b < BINS; b++) held[b] = sum += held[b];
        if (!sum) continue;
        int64_t rank = (int64_t)(level * (double)(cumulated[BINS - 1] - sum - 1)) + 1, low = 0, high = BINS - 1;
        while (low < high) { /* the first bin up to which there are `rank` tokens */
            int64_t middle = (low + high) / 2;
            if (cumulated[middle] - held[middle] >= rank) high = middle; else low = middle + 1;
        }
        bins[with_tokens++] = low;
    }
    return with_tokens;
}

/* log y of normal y > 0: y = 2^k m with m about 1, and log m by the series of (m - 1) / (m + 1). */
static inline __attribute__((always_inline)) void log_of(const lanes *y, lanes *log_y) {
    lane_bits bits = (lane_bits)*y, whole = (bits - 0x3fe6a09e667f3bcd) >> 52;
    lanes m = (lanes)(bits - (whole << 52)), k = (lanes)(whole + 0x4338000000000000) - 6755399441055744.0;
    lanes s = (m - 1.0) / (m + 1.0), z = s * s, p = z * (1 / 19.0) + 1 / 17.0;
    p = p * z + 1 / 15.0;
    p = p * z + 1 / 13.0;
    p = p * z + 1 / 11.0;
    p = p * z + 1 / 9.0;
    p = p * z + 1 / 7.0;
    p = p * z + 1 / 5.0;
    p = p * z + 1 / 3.0;
    *log_y = k * 0.693147180369123816490 + (2.0 * s * (p * z + 1.0) + k * 1.90821492927058770002e-10);
}

/* The mean of log(1 - b x) over x (n), weighted by `share`, for each of b (m); to `means`. Up to `most` neighbours of
   one share have one logarithm, that of their product. */
FASTEST
void kernel_log_means(const double *x, const double *share, int64_t n, int64_t most, const double *b, int64_t m,
                      double *means) {
    for (int64_t j = 0; j < m; j += 8) {
        int64_t here = m - j < 8 ? m - j : 8;
        lanes eight = {0}, sum = {0};
        memcpy(&eight, b + j, here * sizeof *b);
        for (int64_t i = 0; i < n;) {
            int64_t first = i, end = n - i < most ? n : i + most;
            lanes product = 1.0 - eight * x[i], log_product;
            while (++i < end && share[i] == share[first]) product *= 1.0 - eight * x[i];
            log_of(&product, &log_product);
            sum += share[first] * log_product;
        }
        memcpy(means + j, &sum, here * sizeof *means);
    }
}

/* The cells of a sketch from large log-ratios to small: the positive bins downwards, zero, the negative ones upwards. */
#define ZERO (BINS - 1)
#define MIN_CELLS 8
#define POINTS 8
#define NEAR 8
#define CHANCE 2
#define LEAST_WEIGHT (10 * 2.220446049250313e-16)

/* How many values of `cell` are tied: more than the median of the cells near it, by more than chance. */
static int64_t tied(const int64_t *above, const int64_t *below, int64_t cell) {
    const int64_t *side = cell < ZERO ? above : below;
    int64_t bin = cell < ZERO ? ZERO - cell : cell - ZERO, here = side[bin], near[2 * NEAR + 1], n = 0;
    if (bin == 0 || here <= CHANCE) return 0;
    for (int64_t i = bin > NEAR ? bin - NEAR : 1; i <= bin + NEAR && i < BINS; i++) {
        int64_t j = n++;
        for (; j && near[j - 1] > side[i]; j--) near[j] = near[j - 1];
        near[j] = side[i];
    }
    int64_t usual = near[n / 2];
    return here > usual + CHANCE * sqrt(usual + 1.0) ? here - usual : 0;
}

/* A few values, from large to small, for those that one cell holds, and how many each stands for. */
typedef struct { double *value, *each; int64_t n, left; } values_t;

static void take(values_t *to, double start, double end, int64_t held) {
    int64_t taken = held < to->left ? held : to->left, points = taken < POINTS ? taken : POINTS;
    double each = (double)taken / points, step = (end - start) * each / held;
    for (int64_t i = 0; i < points; i++, to->n++) {
        to->value[to->n] = end - step * (i + 0.5);
        to->each[to->n] = each;
    }
    to->left -= taken;
}

/* The fit of Zhang and Stephens to the n weights x (m), of which each stands for `share` of them; `b` has room. */
static double fitted(const double *x, const double *share, int64_t m, double n, double quartile, double *b) {
    int64_t grid = 30 + (int64_t)sqrt(n);
    double *k = b + grid, most = -INFINITY, all = 0, sum = 0, mean = 0;
    for (int64_t i = 0; i < grid; i++) b[i] = (1 - sqrt(grid / (i + 0.5))) / (3 * quartile) + 1 / x[m - 1];
    int64_t together = 1 - b[0] * x[m - 1] < 1e38 ? POINTS : 1; /* so that no product overflows */
    kernel_log_means(x, share, m, together, b, grid, k);
    for (int64_t i = 0; i < grid; i++) {
        k[i] = n * (log(-b[i] / k[i]) - k[i] - 1);
        if (isnan(k[i])) return NAN;
        if (k[i] > most) most = k[i];
    }
    for (int64_t i = 0; i < grid; i++) all += k[i] = exp(k[i] - most);
    for (int64_t i = 0; i < grid; i++) {
        if (k[i] >= LEAST_WEIGHT * all) sum += k[i], mean += b[i] * k[i];
    }
    mean /= sum;
    kernel_log_means(x, share, m, together, &mean, 1, k);
    return k[0] * n / (n + 10) + 5 / (n + 10);
}

/* Pareto k of the `size` largest weights and the next, as pareto.py has it, from the counts of log-ratios `above` and
   `below` 0. A cell is from its `starts` to its `ends`. There is `room` for 6 size + 200 numbers. */
double kernel_pareto(const int64_t *above, const int64_t *below, int64_t size, const double *starts, const double *ends,
                     double *room) {
    int64_t most = size + 1, cell = 0, cells = 0, before = 0, held = 0;
    values_t to = {room, room + most, 0, most};
    for (; cell <= 2 * ZERO; cell++) { /* all but the last cell, which may hold ties */
        held = cell < ZERO ? above[ZERO - cell] : cell == ZERO ? above[0] + below[0] : below[cell - ZERO];
        cells += held != 0;
        if (before + held >= most) break;
        if (held) take(&to, starts[cell], ends[cell], held);
        before += held;
    }
    if (cells < MIN_CELLS || cell > 2 * ZERO) return NAN;
    int64_t alike = tied(above, below, cell);
    if (alike && cells == MIN_CELLS) return NAN;
    double edge = cell < ZERO ? starts[cell] : ends[cell];
    if (alike && cell > ZERO) take(&to, edge, edge, alike);
    if (held > alike && to.left) take(&to, starts[cell], ends[cell], held - alike);
    if (alike && cell < ZERO && to.left) take(&to, edge, edge, alike);

    double *x = room + 2 * most, *share = x + most, largest = to.value[0], total = 0, reached = 0, n;
    double least = exp(to.value[to.n - 1] - largest);
    int64_t m = 0, quarter = 0;
    for (int64_t i = to.n - 1; i >= 0; i--) {
        double weight = exp(to.value[i] - largest);
        if (weight > least) x[m] = weight - least, total += share[m++] = to.each[i];
    }
    if ((n = nearbyint(total)) < 5) return NAN;
    for (; (reached += share[quarter]) < floor(n / 4 + 0.5) - 1e-6; quarter++) {}
    for (int64_t i = 0; i < m; i++) share[i] /= total;
    return fitted(x, share, m, n, x[quarter], share + most);
}

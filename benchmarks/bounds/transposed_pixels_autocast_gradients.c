/* Both gradients of a depthwise transposed 2x2 convolution with stride 2 under autocast, images in
   channels-last format: y is bfloat16, the image and the filter are rounded to it here, and the
   gradients are rounded to it and written as float32. Of some channels the sums for the filter stay
   in the nearest cache, for all pixels. One instruction adds products of both numbers of words to
   float32: what comes from two rows of channels is interleaved, two cells for a pixel, and two
   pixels for the filter. What the next two pixels need is asked for, into the second cache. */
#include "bfloat16.h"

enum { PART = 512, LANES = 32 };

/* What belongs to some channels: the filter, rounded; both of its numbers for a row of cells as a
   word; and sums. The last two are in the order of `place_of`. */
struct part {
    float filters[4][PART];
    uint32_t pairs[2][PART];
    float sums[4][PART];
} __attribute__((aligned(64)));

/* Where numbers of a channel are behind `unpack`: of each eight, four go to either vector. */
static int place_of(int channel)
{
    return channel / LANES * LANES + channel % 8 / 4 * 16 + channel % LANES / 8 * 4 + channel % 4;
}

/* Some channels of a pixel. */
__attribute__((noinline, cold)) static void pixel(
    const uint16_t *const cells[4], const float *x, struct part *part, float *image, int64_t begin,
    int64_t end)
{
    for (int64_t c = begin; c < end; c++) {
        float total = 0;
        for (int k = 0; k < 4; k++) {
            total += wide(cells[k][c]) * part->filters[k][c];
            part->sums[k][place_of((int)c)] += wide(cells[k][c]) * rounded(x[c]);
        }
        image[c] = rounded(total);
    }
}

#ifdef HAS_LANES
static inline __m512 add_at(__m512 sums, __m512i a, const void *place)
{
    return add_products(sums, a, _mm512_loadu_si512(place));
}

/* 32 channels, `c` and more, of two pixels side by side, whose cells are 2 * `next` elements apart;
   0 where something is tiny, and nothing is written. */
static inline int two_pixels(
    const uint16_t *const cells[4], const float *x, struct part *part, float *image, int64_t c,
    int64_t next)
{
    __m512i y[2][4], pixels[2];
    struct least least = none_yet();
    for (int at = 0; at < 2; at++) {
        for (int k = 0; k < 4; k++) {
            y[at][k] = _mm512_loadu_si512(cells[k] + 2 * at * next + c);
            least = least_halves(least, y[at][k]);
        }
        const __m512 first = _mm512_loadu_ps(x + at * next + c);
        const __m512 second = _mm512_loadu_ps(x + at * next + c + 16);
        least = least_floats(least_floats(least, first), second);
        pixels[at] = halves_of(first, second);
    }
    if (!is_coarse(least)) return 0;
    uint16_t natural[32];
    for (int lane = 0; lane < 32; lane++) natural[lane] = (uint16_t)place_of(lane / 2);
    const __m512i order = _mm512_loadu_si512(natural);
    for (int at = 0; at < 2; at++) {
        __m512 low = _mm512_setzero_ps(), high = low;
        for (int row = 0; row < 2; row++) {
            const __m512i left = y[at][2 * row], right = y[at][2 * row + 1];
            const uint32_t *const pairs = part->pairs[row] + c;
            low = add_at(low, _mm512_unpacklo_epi16(left, right), pairs);
            high = add_at(high, _mm512_unpackhi_epi16(left, right), pairs + 16);
        }
        const __m512i found = halves_of(low, high);
        const __m512i behind = _mm512_add_epi16(order, _mm512_set1_epi16(8));
        _mm512_storeu_ps(image + at * next + c, picked(found, order));
        _mm512_storeu_ps(image + at * next + c + 16, picked(found, behind));
    }
    const __m512i low = _mm512_unpacklo_epi16(pixels[0], pixels[1]);
    const __m512i high = _mm512_unpackhi_epi16(pixels[0], pixels[1]);
    for (int k = 0; k < 4; k++) {
        float *const sums = part->sums[k] + c;
        const __m512i these = _mm512_unpacklo_epi16(y[0][k], y[1][k]);
        const __m512i those = _mm512_unpackhi_epi16(y[0][k], y[1][k]);
        _mm512_store_ps(sums, add_products(_mm512_load_ps(sums), these, low));
        _mm512_store_ps(sums + 16, add_products(_mm512_load_ps(sums + 16), those, high));
    }
    return 1;
}

static inline void ask_for(
    const uint16_t *const cells[4], const float *x, int64_t next, int64_t ahead)
{
    for (int k = 0; k < 4; k++) {
        __builtin_prefetch(cells[k] + ahead, 0, 2);
        __builtin_prefetch(cells[k] + ahead + 2 * next, 0, 2);
        __builtin_prefetch(x + (2 + k / 2) * next + k % 2 * 16, 0, 2);
    }
}
#endif

/* With w and v as the image and the filter rounded to bfloat16,
   grad_x[n, h, w, c] = bfloat16(sum(i,j) y[n, 2h+i, 2w+j, c] * w[c, i, j]) and
   grad_weight[c, i, j] = bfloat16(sum(n,h,w) y[n, 2h+i, 2w+j, c] * v[n, h, w, c]) */
void transposed_pixels_autocast_gradients(
    const uint16_t *restrict y, const float *restrict x, const float *restrict weight,
    float *restrict image, float *restrict gradient, int64_t images, int64_t height, int64_t width,
    int64_t channels)
{
#pragma omp parallel for
    for (int64_t first = 0; first < channels; first += PART) {
        const int64_t some = channels - first < PART ? channels - first : PART;
        struct part part;
        memset(&part, 0, sizeof part);
        int coarse = 1;
        for (int64_t c = 0; c < some; c++)
            for (int64_t k = 0; k < 4; k++) {
                const float w = part.filters[k][c] = rounded(weight[4 * (first + c) + k]);
                part.pairs[k / 2][place_of((int)c)] |= (uint32_t)half(w) << k % 2 * 16;
                coarse &= w == 0 || !(w < 0x1p-50f && w > -0x1p-50f);
            }
        for (int64_t row = 0; row < images * height; row++)
            for (int64_t w = 0; w < width; w += 2) {
                const int64_t at = (row * width + w) * channels + first;
                const uint16_t *const a = y + (row * 4 * width + 2 * w) * channels + first;
                const uint16_t *const b = a + 2 * width * channels;
                const uint16_t *const cells[4] = {a, a + channels, b, b + channels};
                int64_t done = 0;
#ifdef HAS_LANES
                const int64_t ahead = (w + 2 < width ? 4 : 4 * width - 2 * w) * channels;
                for (; coarse && w + 1 < width && done + LANES <= some; done += LANES) {
                    ask_for(cells, x + at + done, channels, ahead + done);
                    if (!two_pixels(cells, x + at, &part, image + at, done, channels)) break;
                }
#endif
                pixel(cells, x + at, &part, image + at, done, some);
                if (w + 1 == width) continue;
                const uint16_t *const others[4] = {
                    a + 2 * channels, a + 3 * channels, b + 2 * channels, b + 3 * channels};
                const int64_t other = at + channels;
                pixel(others, x + other, &part, image + other, done, some);
            }
        for (int64_t k = 0; k < 4; k++)
            for (int64_t c = 0; c < some; c++)
                gradient[4 * (first + c) + k] = rounded(part.sums[k][place_of((int)c)]);
    }
}

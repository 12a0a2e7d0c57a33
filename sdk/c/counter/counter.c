/*
 * The test cell `counter` of cells/testing/counter, in C: the same commands, the same answers, byte for byte, from the same inputs. Its
 * README is the head of cells/testing/counter/src/lib.rs.
 */

#define MARRAM_CELL
#define MARRAM_ON_TIMER
#define MARRAM_ON_CLOSE
#include "marram.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK 1
#define TICK_EVERY_NS 10000000
#define REPLY_MAX 65536

static uint64_t messages;
static uint64_t ticks;
static bool ticking;
static double number = 1.0;
static size_t kept;
/* Never read: it prevents the compiler from removing the memory. */
static uint8_t *volatile newest;
static int words = -1;

static char reply[REPLY_MAX];
static size_t reply_len;

static void add(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int len = vsnprintf(reply + reply_len, sizeof reply - reply_len, format, arguments);
    va_end(arguments);
    if (len < 0 || (size_t)len >= sizeof reply - reply_len) {
        abort();
    }
    reply_len += (size_t)len;
}

static uint64_t bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void tick(bool again) {
    ticking = again;
    marram_timer_set(TICK_EVERY_NS, TICK);
}

static void word(void) {
    if (words < 0) {
        words = open("/etc/words", O_RDONLY);
    }
    if (words < 0) {
        add(" word=NotFound");
        return;
    }
    add(" word=");
    for (char letter; read(words, &letter, 1) == 1 && letter != '\n';) {
        add("%c", letter);
    }
}

static void command(uint8_t what) {
    static const char line[] = "counter counter counter counter counter counter counter counter counter counter counter counter counter ";
    switch (what) {
    case 'f':
        number = fma(sqrt(number * 1.1 + 0.3), 0.7, number / 3.0);
        add(" float=%016" PRIx64, bits(number));
        break;
    case 'n': {
        volatile double zero = 0.0, other = 0.0;
        add(" nan=%016" PRIx64, bits(zero / other));
        break;
    }
    case 'r': {
        uint8_t bytes[8];
        marram_random(bytes, sizeof bytes);
        add(" random=");
        for (size_t at = 0; at < sizeof bytes; at++) {
            add("%02x", bytes[at]);
        }
        break;
    }
    case 'c':
        add(" now=%" PRId64, marram_now());
        break;
    case 't':
        tick(false);
        break;
    case 'T':
        tick(true);
        break;
    case 'x':
        marram_timer_cancel(TICK);
        break;
    case 'p':
        marram_print(MARRAM_INFO, line, 100);
        break;
    case 'm': {
        uint8_t *more = malloc(1 << 20);
        if (more == NULL) {
            abort();
        }
        memset(more, what, 1 << 20);
        newest = more;
        kept += 1;
        add(" kept=%zu", kept);
        break;
    }
    case 'w':
        word();
        break;
    case '!':
        abort();
    case '@':
        for (volatile double *value = &number;;) {
            *value += 0.0;
        }
    default:
        break;
    }
}

void marram_on_message(uint32_t port, const uint8_t *payload, size_t len) {
    if (port != MARRAM_CLIENT) {
        return;
    }
    messages += 1;
    reply_len = 0;
    add("count=%" PRIu64, messages);
    for (size_t at = 0; at < len; at++) {
        command(payload[at]);
    }
    add("\n");
    marram_send(MARRAM_CLIENT, reply, reply_len);
    if (len > 0 && memchr(payload, 's', len) != NULL) {
        marram_send(MARRAM_SERVER, reply, reply_len);
    }
    if (len > 0 && memchr(payload, 'q', len) != NULL) {
        marram_close_port(MARRAM_CLIENT);
    }
}

void marram_on_timer(uint64_t token) {
    (void)token;
    char text[32];
    ticks += 1;
    int len = snprintf(text, sizeof text, "tick=%" PRIu64 "\n", ticks);
    marram_send(MARRAM_CLIENT, text, (size_t)len);
    if (ticking) {
        marram_timer_set(TICK_EVERY_NS, TICK);
    }
}

void marram_on_close(uint32_t port) { marram_close_port(marram_opposite(port)); }

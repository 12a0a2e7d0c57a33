/*
 * Pauses its client for a time. The first message is `pause MILLISECONDS` and a line feed; all further bytes are only counted.
 *
 * When the client has closed, the answer has its address, its listener, the number of bytes that arrived while it was paused, and
 * the number of all of them.
 */

#define MARRAM_CELL
#define MARRAM_ON_TIMER
#define MARRAM_ON_CLOSE
#include "marram.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define RESUME 1
#define NS_PER_MS 1000000

static bool begun;
static bool paused;
static uint64_t while_paused;
static uint64_t all;

void marram_on_message(uint32_t port, const uint8_t *payload, size_t len) {
    long ms;
    if (!begun && sscanf((const char *)payload, "pause %ld", &ms) == 1) {
        begun = paused = true;
        marram_pause(port);
        marram_timer_set((int64_t)ms * NS_PER_MS, RESUME);
        marram_send(port, "paused\n", 7);
        return;
    }
    all += len;
    if (paused) {
        while_paused += len;
    }
}

void marram_on_timer(uint64_t token) {
    (void)token;
    paused = false;
    marram_resume(MARRAM_CLIENT);
}

/* One fact about the client, as text. */
static const char *fact(uint32_t port, enum marram_peer_field field, char text[MARRAM_PEER_MAX + 1]) {
    int32_t len = marram_peer(port, field, text, MARRAM_PEER_MAX);
    if (len == MARRAM_PEER_UNKNOWN) {
        return "unknown";
    }
    text[len] = 0;
    return text;
}

void marram_on_close(uint32_t port) {
    static char address[MARRAM_PEER_MAX + 1], listener[MARRAM_PEER_MAX + 1], identity[MARRAM_PEER_MAX + 1];
    static char answer[4 * MARRAM_PEER_MAX];
    int len = snprintf(answer, sizeof answer, "%s %s %s %" PRIu64 " %" PRIu64 "\n", fact(port, MARRAM_PEER_ADDRESS, address),
                       fact(port, MARRAM_PEER_LISTENER, listener), fact(port, MARRAM_PEER_IDENTITY, identity), while_paused, all);
    marram_send(port, answer, (size_t)len);
    marram_close_port(port);
}

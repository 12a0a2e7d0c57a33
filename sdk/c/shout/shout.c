/* Answers each message in capital letters, and sends their number when the client has closed. */

#define MARRAM_CELL
#define MARRAM_ON_CLOSE
#include "marram.h"

#include <ctype.h>
#include <stdio.h>

/* The session's state is ordinary data; it survives the edge. */
static unsigned long messages;

void marram_on_message(uint32_t port, const uint8_t *payload, size_t len) {
    static uint8_t answer[MARRAM_MESSAGE_MAX];
    messages += 1;
    for (size_t at = 0; at < len; at++) {
        answer[at] = (uint8_t)toupper(payload[at]);
    }
    marram_send(port, answer, len);
}

void marram_on_close(uint32_t port) {
    char text[64];
    int len = snprintf(text, sizeof text, "%lu messages\n", messages);
    marram_send(port, text, (size_t)len);
    marram_close_port(port);
}

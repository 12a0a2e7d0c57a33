/*
 * Marram cells in C: this one file, with clang or zig.
 *
 *     #define MARRAM_CELL          in one file of the cell
 *     #include "marram.h"
 *
 *     void marram_on_message(uint32_t port, const uint8_t *payload, size_t len) {
 *         marram_send(port, payload, len);
 *     }
 *
 *     clang --target=wasm32-wasi --sysroot=/usr -O2 -mexec-model=reactor -o cell.wasm cell.c     with Debian's clang, lld,
 *                                                          wasi-libc and libclang-rt-dev-wasm32
 *     zig cc -target wasm32-wasi -O2 -mexec-model=reactor -o cell.wasm cell.c
 *
 * Handlers run one at a time and to the end. A handler that traps sends nothing and ends its session with the reason; so does one that
 * breaks a bound below. State is ordinary static data and what malloc gives: it survives the edge. What host and module say to each
 * other is in docs/abi.md; this file is all of it in C.
 */
#ifndef MARRAM_H
#define MARRAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The ports of a session. In a cell that all clients share, further clients have 2, 3, ... */
#define MARRAM_CLIENT 0u
#define MARRAM_SERVER 1u

/* Bytes of one message, at most, in either direction. */
#define MARRAM_MESSAGE_MAX 1048576u
/* Bytes of one message to or from a peer that speaks in datagrams, at most. */
#define MARRAM_DATAGRAM_MAX 65507u
/* Bytes that marram_random fills at once, at most. */
#define MARRAM_RANDOM_MAX 65536u
/* Bytes of a signature, at most. */
#define MARRAM_SIGNATURE_MAX 128u
/* Bytes of what marram_peer knows, at most. */
#define MARRAM_PEER_MAX 512u
/* Bytes of an object from the cache, at most. */
#define MARRAM_OBJECT_MAX 524288u

/* How a peer speaks, as marram_on_open is told. */
enum marram_kind {
    MARRAM_KIND_CLIENT = 0,
    MARRAM_KIND_SERVER = 1,
    MARRAM_KIND_CLIENT_DATAGRAMS = 2,
    MARRAM_KIND_SERVER_DATAGRAMS = 3,
};

/* Levels of marram_print. */
enum marram_level { MARRAM_ERROR = 0, MARRAM_WARNING = 1, MARRAM_INFO = 2, MARRAM_DEBUG = 3 };

/* What marram_peer can be asked. */
enum marram_peer_field {
    MARRAM_PEER_ADDRESS = 0,  /* "192.0.2.1:40000" or "[2001:db8::1]:40000", as the client's agent says */
    MARRAM_PEER_LISTENER = 1, /* the name of the listener at which the client came in, as its agent says */
    MARRAM_PEER_IDENTITY = 2, /* from the TLS certificate of the client's agent, which the edge verified */
};
/* What marram_peer answers where nothing is known. */
#define MARRAM_PEER_UNKNOWN (-1)

/* What marram_cache_read answers if not with a size. */
#define MARRAM_CACHE_NONE (-1)    /* there is no such object */
#define MARRAM_CACHE_AWAY (-2)    /* it could not be had in time */
#define MARRAM_CACHE_REFUSED (-3) /* it cannot be had so: the edge's log says why */

/*
 * Handlers. marram_on_message is always needed. Of the others define those that you want, and say so before this file is included
 * in the file with MARRAM_CELL: #define MARRAM_ON_OPEN, MARRAM_ON_TIMER, MARRAM_ON_TASK, MARRAM_ON_CLOSE. What you leave out does
 * nothing.
 *
 * What runs once, when the app is deployed, is a constructor: __attribute__((constructor)) void begin(void). Nothing that differs
 * between sessions may be asked for there.
 */

/* A message came, or a piece of the stream of a peer that knows no messages. The bytes are good until the handler returns. */
void marram_on_message(uint32_t port, const uint8_t *payload, size_t len);
/* A peer is there and can be sent to. */
void marram_on_open(uint32_t port, enum marram_kind kind);
/* A timer is due. */
void marram_on_timer(uint64_t token);
/* A task has its turn, and the lock that was asked for it. */
void marram_on_task(uint64_t token);
/* The peer will send no more; it can still be sent to. */
void marram_on_close(uint32_t port);

#define MARRAM_IMPORT(name) __attribute__((import_module("marram_v1"), import_name(name)))

/* Queues a copy of the bytes as one message. Messages to one port arrive in order, each exactly once. */
MARRAM_IMPORT("send") void marram_send(uint32_t port, const void *bytes, size_t len);
/* Nothing more will be sent to the port. */
MARRAM_IMPORT("close") void marram_close_port(uint32_t port);
/* The peer waits: it is granted no more credit. What it sent within the credit that it has, about a mebibyte, still arrives. */
MARRAM_IMPORT("pause") void marram_pause(uint32_t port);
/* A peer that was paused may send again. */
MARRAM_IMPORT("resume") void marram_resume(uint32_t port);
/* What is known of a client: its length, and the text, without a 0 behind it, if it fits; or MARRAM_PEER_UNKNOWN. */
MARRAM_IMPORT("peer") int32_t marram_peer(uint32_t port, enum marram_peer_field field, void *buffer, size_t room);
/* Session time in nanoseconds: the same throughout a handler, never backwards; its zero means nothing. */
MARRAM_IMPORT("now") int64_t marram_now(void);
/* Fills the buffer with bytes that no other session shares. */
MARRAM_IMPORT("random") void marram_random(void *buffer, size_t len);
/* Signs with the app's key of this number; writes the signature and gives its length. docs/abi.md says what may be signed. */
MARRAM_IMPORT("sign") int32_t marram_sign(uint32_t key, const void *bytes, size_t len, void *out, size_t room);
/* Has marram_on_timer called, delay_ns from now. One timer a token: setting it again replaces it. */
MARRAM_IMPORT("timer") void marram_timer_set(int64_t delay_ns, uint64_t token);
/* Forgets a timer. */
MARRAM_IMPORT("timer_cancel") void marram_timer_cancel(uint64_t token);
/* Has marram_on_task called in its turn. One task a token. */
MARRAM_IMPORT("spawn") void marram_spawn(uint64_t token);
/* Has marram_on_task called as soon as that task has the lock; it keeps it until it gives it back. */
MARRAM_IMPORT("lock") void marram_lock(uint64_t id, uint64_t token);
/* The task that runs gives the lock back. */
MARRAM_IMPORT("unlock") void marram_unlock(uint64_t id);
/* A line in the edge's log. No part of what the cell does. */
MARRAM_IMPORT("print") void marram_print(enum marram_level level, const char *text, size_t len);
/* Reads an object from the edge's cache, and waits for it: its size, and the bytes if they fit; or one of MARRAM_CACHE_... */
MARRAM_IMPORT("cache_read") int32_t marram_cache_read(const char *key, size_t key_len, void *buffer, size_t room);

/* The peer on the other side of a session. */
static inline uint32_t marram_opposite(uint32_t port) { return port == MARRAM_CLIENT ? MARRAM_SERVER : MARRAM_CLIENT; }

#ifdef MARRAM_CELL

#define MARRAM_EXPORT(name) __attribute__((export_name(name), visibility("default")))

/* Messages come here, one at a time. Pages of it that no message has reached cost nothing. */
static uint8_t marram_buffer[MARRAM_MESSAGE_MAX];

MARRAM_EXPORT("marram_alloc") uint8_t *marram_export_alloc(uint32_t len) {
    (void)len;
    return marram_buffer;
}

MARRAM_EXPORT("marram_recv") void marram_export_recv(uint32_t port, const uint8_t *bytes, uint32_t len) {
    marram_on_message(port, bytes, len);
}

#ifdef MARRAM_ON_OPEN
MARRAM_EXPORT("marram_open") void marram_export_open(uint32_t port, uint32_t kind) {
    marram_on_open(port, (enum marram_kind)kind);
}
#endif

#ifdef MARRAM_ON_TIMER
MARRAM_EXPORT("marram_timer") void marram_export_timer(uint64_t token) { marram_on_timer(token); }
#endif

#ifdef MARRAM_ON_TASK
MARRAM_EXPORT("marram_task") void marram_export_task(uint64_t token) { marram_on_task(token); }
#endif

#ifdef MARRAM_ON_CLOSE
MARRAM_EXPORT("marram_close") void marram_export_close(uint32_t port) { marram_on_close(port); }
#endif

#endif /* MARRAM_CELL */

#ifdef __cplusplus
}
#endif

#endif /* MARRAM_H */

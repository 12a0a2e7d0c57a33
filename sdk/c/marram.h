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
 * Handlers run one at a time and to the end. A handler that traps or exceeds a limit below sends nothing and ends its session
 * with the reason. State is ordinary static data and memory from malloc: it survives the edge. docs/abi.md describes the interface
 * between host and module; this file is all of it in C.
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

/* Largest message in either direction, in bytes. */
#define MARRAM_MESSAGE_MAX 1048576u
/* Largest message to or from a datagram peer, in bytes. */
#define MARRAM_DATAGRAM_MAX 65507u
/* Most bytes that marram_random fills in one call. */
#define MARRAM_RANDOM_MAX 65536u
/* Largest signature, in bytes. */
#define MARRAM_SIGNATURE_MAX 128u
/* Largest result of marram_peer, in bytes. */
#define MARRAM_PEER_MAX 512u
/* Largest object from the cache, in bytes. */
#define MARRAM_OBJECT_MAX 524288u

/* The kind of a peer, as passed to marram_on_open. */
enum marram_kind {
    MARRAM_KIND_CLIENT = 0,
    MARRAM_KIND_SERVER = 1,
    MARRAM_KIND_CLIENT_DATAGRAMS = 2,
    MARRAM_KIND_SERVER_DATAGRAMS = 3,
};

/* Levels of marram_print. */
enum marram_level { MARRAM_ERROR = 0, MARRAM_WARNING = 1, MARRAM_INFO = 2, MARRAM_DEBUG = 3 };

/* The facts that marram_peer returns. */
enum marram_peer_field {
    MARRAM_PEER_ADDRESS = 0,  /* "192.0.2.1:40000" or "[2001:db8::1]:40000", as the client's agent reports it */
    MARRAM_PEER_LISTENER = 1, /* the name of the listener that the client connected to, as its agent reports it */
    MARRAM_PEER_IDENTITY = 2, /* from the TLS certificate of the client's agent, which the edge verified */
};
/* The result of marram_peer if nothing is known. */
#define MARRAM_PEER_UNKNOWN (-1)

/* The results of marram_cache_read other than a size. */
#define MARRAM_CACHE_NONE (-1)    /* there is no such object */
#define MARRAM_CACHE_AWAY (-2)    /* it could not be fetched in time */
#define MARRAM_CACHE_REFUSED (-3) /* it cannot be read: the edge's log has the reason */

/*
 * Handlers. marram_on_message is required. The others are optional: for each one that the cell has, define MARRAM_ON_OPEN,
 * MARRAM_ON_TIMER, MARRAM_ON_TASK or MARRAM_ON_CLOSE before this file is included in the file with MARRAM_CELL. Without a handler,
 * the event does nothing.
 *
 * A constructor runs once, when the app is deployed: __attribute__((constructor)) void begin(void). It may not ask the host for
 * anything that differs between sessions.
 */

/* A message, or a piece of a stream from a peer without message boundaries. The bytes are valid until the handler returns. */
void marram_on_message(uint32_t port, const uint8_t *payload, size_t len);
/* A peer is connected and can receive messages. */
void marram_on_open(uint32_t port, enum marram_kind kind);
/* A timer is due. */
void marram_on_timer(uint64_t token);
/* A task runs, and has the lock that was requested for it, if any. */
void marram_on_task(uint64_t token);
/* The peer will send no more; the cell can still send to it. */
void marram_on_close(uint32_t port);

#define MARRAM_IMPORT(name) __attribute__((import_module("marram_v1"), import_name(name)))

/* Queues a copy of the bytes as one message. Messages to one port arrive in order, each exactly once. */
MARRAM_IMPORT("send") void marram_send(uint32_t port, const void *bytes, size_t len);
/* Nothing more will be sent to the port. */
MARRAM_IMPORT("close") void marram_close_port(uint32_t port);
/* The first server to which a shared cell connects has this port, and each further one the next number. */
#define MARRAM_FIRST_CONNECTED 0x80000000u
/* Connects a shared cell that has a backup to one of the manifest's `servers`, and returns the port that will lead there. marram_on_open is called
   with it when the server's side is there, or marram_on_close if it cannot be reached; nothing can be sent there before. */
MARRAM_IMPORT("connect") uint32_t marram_connect(const char *name, size_t len);
/* Pauses the peer: it gets no more credit. What it sends within its remaining credit, about a mebibyte, still arrives. */
MARRAM_IMPORT("pause") void marram_pause(uint32_t port);
/* Lets a paused peer send again. */
MARRAM_IMPORT("resume") void marram_resume(uint32_t port);
/* A fact about a client: returns its length, and writes the text, without a final 0, if it fits; or MARRAM_PEER_UNKNOWN. */
MARRAM_IMPORT("peer") int32_t marram_peer(uint32_t port, enum marram_peer_field field, void *buffer, size_t room);
/* Session time in nanoseconds: constant within a handler, never runs backwards; its zero has no meaning. */
MARRAM_IMPORT("now") int64_t marram_now(void);
/* Fills the buffer with bytes that no other session shares. */
MARRAM_IMPORT("random") void marram_random(void *buffer, size_t len);
/* Signs with the app's key of this number; writes the signature and returns its length. docs/abi.md lists what may be signed. */
MARRAM_IMPORT("sign") int32_t marram_sign(uint32_t key, const void *bytes, size_t len, void *out, size_t room);
/* Calls marram_on_timer, delay_ns from now. One timer per token: setting it again replaces it. */
MARRAM_IMPORT("timer") void marram_timer_set(int64_t delay_ns, uint64_t token);
/* Cancels a timer. */
MARRAM_IMPORT("timer_cancel") void marram_timer_cancel(uint64_t token);
/* Queues a call of marram_on_task. One task per token. */
MARRAM_IMPORT("spawn") void marram_spawn(uint64_t token);
/* Calls marram_on_task as soon as that task has the lock; the task keeps it until marram_unlock. */
MARRAM_IMPORT("lock") void marram_lock(uint64_t id, uint64_t token);
/* The running task releases the lock. */
MARRAM_IMPORT("unlock") void marram_unlock(uint64_t id);
/* Writes a line to the edge's log. It does not affect the cell's behaviour. */
MARRAM_IMPORT("print") void marram_print(enum marram_level level, const char *text, size_t len);
/* Reads an object from the edge's cache and waits for it. Returns its size and writes it if it fits; or one of MARRAM_CACHE_... */
MARRAM_IMPORT("cache_read") int32_t marram_cache_read(const char *key, size_t key_len, void *buffer, size_t room);

/* The peer on the other side of a session. */
static inline uint32_t marram_opposite(uint32_t port) { return port == MARRAM_CLIENT ? MARRAM_SERVER : MARRAM_CLIENT; }

#ifdef MARRAM_CELL

#define MARRAM_EXPORT(name) __attribute__((export_name(name), visibility("default")))

/* The host writes messages here, one at a time. Pages that no message has reached cost nothing. */
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

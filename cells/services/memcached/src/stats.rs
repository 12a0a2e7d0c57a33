//! The answer to `stats`: only what this cache can know of itself, so no process, threads or slabs.
//!
//! Tools read these names and expect memcached's; a name whose number would be invented is left out
//! rather than set to 0. The constant ones (`pid`, `pointer_size`, `threads`) describe the cell:
//! one thread with addresses of 32 bits. A group is answered by `STAT name value` lines and `END`,
//! even if it is empty; an unknown one by `ERROR`.

use crate::{
    clock::Seconds,
    reply::Reply,
    server::{Counters, Server, VERSION},
    store::ITEM_BYTES_MAX,
};

impl Server {
    /// The statistics, the settings, or nothing for groups that are empty here.
    pub(crate) fn stats(&mut self, of: Option<&[u8]>, now: Seconds, reply: &mut Reply<'_>) {
        match of {
            None => self.general(now, reply),
            Some(b"settings") => self.settings(reply),
            // Lists by size class, of which there are none.
            Some(b"items" | b"slabs" | b"conns") => {}
            Some(b"sizes") => reply.stat("sizes_status", "disabled"),
            Some(b"reset") => {
                self.counters = Counters::default();
                return reply.line("RESET");
            }
            Some(_) => return reply.line("ERROR"),
        }
        reply.line("END");
    }

    /// One line for each number. Reads counters only, so that it is as cheap as a `get`.
    fn general(&self, now: Seconds, reply: &mut Reply<'_>) {
        let Counters { get, touch, delete, incr, decr, cas, .. } = self.counters;
        reply.stat("pid", 1);
        reply.stat("uptime", now.0.saturating_sub(self.started.0));
        reply.stat("time", now.0);
        reply.stat("version", VERSION);
        reply.stat("pointer_size", 32);
        let census = self.store.census();
        let numbers = [
            ("curr_connections", self.connections_now),
            ("total_connections", self.counters.connections),
            ("cmd_get", get.hits + get.misses),
            ("cmd_set", self.counters.cmd_set),
            ("cmd_flush", self.counters.cmd_flush),
            ("cmd_touch", touch.hits + touch.misses),
            ("get_hits", get.hits),
            ("get_misses", get.misses),
            ("delete_misses", delete.misses),
            ("delete_hits", delete.hits),
            ("incr_misses", incr.misses),
            ("incr_hits", incr.hits),
            ("decr_misses", decr.misses),
            ("decr_hits", decr.hits),
            ("cas_misses", cas.misses),
            ("cas_hits", cas.hits),
            ("cas_badval", self.counters.cas_badval),
            ("touch_hits", touch.hits),
            ("touch_misses", touch.misses),
            ("bytes_read", self.counters.bytes_read),
            ("bytes_written", self.counters.bytes_written),
            ("limit_maxbytes", self.store.bytes_max() as u64),
            ("threads", 1),
            ("bytes", self.store.bytes() as u64),
            ("curr_items", self.store.items() as u64),
            ("total_items", census.items_total),
            ("evictions", census.evictions),
            ("reclaimed", census.reclaimed),
        ];
        numbers.iter().for_each(|(name, value)| reply.stat(name, value));
    }

    /// All but `maxbytes` are constants of this build.
    fn settings(&self, reply: &mut Reply<'_>) {
        reply.stat("maxbytes", self.store.bytes_max());
        reply.stat("item_size_max", ITEM_BYTES_MAX);
        reply.stat("evictions", "on");
        reply.stat("cas_enabled", "yes");
        reply.stat("flush_enabled", "yes");
        reply.stat("num_threads", 1);
    }
}

//! Recordings that shards make: each must be of use at once.

use super::World;
use crate::{executor::play, position::ShardPosition, watch::Rare};
use marram_session::replay::Gathered;
use marram_wire::recording::Recording;

impl World {
    /// Encodes, decodes and replays a recording: it must end in the state of the session's cell.
    ///
    /// The file is checked as a user would use it: written, read back, run. It must give the state
    /// hash that the shard computed when the recording began. What the shard is answered: why there is none, if there is none.
    pub(super) fn keep_recording(
        &mut self,
        position: ShardPosition,
        gathered: Gathered,
        (edge, unix_ns, state): (String, i64, Option<[u8; 32]>),
    ) -> Result<String, String> {
        let session = gathered.session;
        let assembled = gathered.assemble(edge, unix_ns, state);
        // What an end that lies shows is refused, and no recording is made of it.
        let refused_a_lie = assembled.is_err() && self.is_lied_about(session);
        let result = assembled.map_err(|error| error.to_string()).and_then(|recording| {
            let file = recording.encode();
            let read = Recording::decode(&file).map_err(|error| error.to_string())?;
            let played = play(&read, self.edges[position.edge].habits, &self.past)?;
            if played.state != read.about.state {
                return Err(format!("its replay ends elsewhere after {} entries", played.entries));
            }
            self.watch.count_if(Rare::RecordingReplayed, true);
            self.watch.count_if(Rare::RecordingFromCheckpoint, played.restored && played.entries > 0);
            self.watch.count_if(Rare::StopRecorded, read.stop.is_some());
            self.watch.count_if(Rare::CellRecorded, read.about.shared && played.entries > 0);
            self.note(&[7, played.entries], &file, || format!("{position} recorded {session}: {played:?}"));
            Ok("a file".to_string())
        });
        if let Err(why) = &result
            && !refused_a_lie
        {
            self.violations.push(format!("{position}: a recording of {session} is of no use: {why}"));
        }
        result
    }
}

//! Motion detection in a video stream: learns the background as the mean of the last frames, and forwards the frames that differ
//! from it. This file handles the stream's messages; the format is in `y4m`, the mean in `mean`, the definition of a change in
//! `motion`.

pub mod mean;
pub mod motion;
pub mod settings;
pub mod y4m;

use marram_sdk::{Cell, Context, Level, Port, cell};
use mean::Mean;
use motion::{Change, Motion};
use settings::Settings;
use y4m::{Part, Reader, Refused};

/// The cell.
pub struct Background {
    settings: Settings,
    reader: Reader,
    /// Set when the stream's header has arrived.
    scene: Option<Scene>,
    refused: bool,
}

/// Parameters that are added to a forwarded frame's line.
const FINDINGS: [&str; 4] = ["XNUMBER", "XCHANGED", "XBOX", "XLEARNING"];

/// The state of the scene.
struct Scene {
    mean: Mean,
    motion: Motion,
    frames: u64,
    forwarded: u64,
}

impl Default for Background {
    /// Reads the image's settings, so that deployment refuses invalid ones.
    fn default() -> Self {
        let text = std::fs::read_to_string(settings::PATH).unwrap_or_default();
        let settings = settings::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", settings::PATH));
        Self { settings, reader: Reader::default(), scene: None, refused: false }
    }
}

/// The header of a forwarded frame: its own, and the findings, as the format's comments (`X`). The stream's own comments cannot
/// forge findings.
fn frame_header(number: u64, parameters: &str, change: Option<&Change>) -> String {
    let is_ours = |word: &&str| FINDINGS.iter().any(|name| word.starts_with(name));
    let parameters: String =
        parameters.split_inclusive(' ').filter(|word| !is_ours(word)).collect::<String>();
    let parameters = parameters.trim_end_matches(' ');
    let found = match change {
        None => " XLEARNING".to_owned(),
        Some(Change { pixels, x, y, width, height }) => {
            format!(" XCHANGED={pixels} XBOX={x},{y},{width},{height}")
        }
    };
    format!("FRAME{parameters} XNUMBER={number}{found}\n")
}

impl Background {
    fn parts(&mut self, context: &mut Context, mut payload: &[u8]) -> Result<(), Refused> {
        while let Some(part) = self.reader.next(&mut payload)? {
            match part {
                Part::Header(header) => {
                    let size = header.luma();
                    let (width, height) = (header.width, header.height);
                    let mean = Mean::new(size, self.settings.frames);
                    self.scene = Some(Scene {
                        mean: mean.ok_or(Refused::Memory { width, height })?,
                        motion: Motion::new(width, height, self.settings),
                        frames: 0,
                        forwarded: 0,
                    });
                    context.send_to_server(header.line.as_bytes());
                }
                Part::Frame { parameters, planes, luma } => {
                    let scene = self.scene.as_mut().expect("a stream begins with its header");
                    let luma = &planes[..luma];
                    // Until the background is known, everything may be a change.
                    let known = scene.mean.is_full();
                    let change = if known { scene.motion.find(luma, &scene.mean) } else { None };
                    if !known || change.is_some() {
                        let header = frame_header(scene.frames, parameters, change.as_ref());
                        context.send_to_server(header.as_bytes());
                        for piece in planes.chunks(marram_sdk::MESSAGE_BYTES_MAX) {
                            context.send_to_server(piece);
                        }
                        scene.forwarded += 1;
                    }
                    scene.mean.add(luma);
                    scene.frames += 1;
                }
            }
        }
        Ok(())
    }
}

impl Cell for Background {
    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        if port == Port::SERVER {
            // Data from the server passes to the client unchanged.
            return context.send_to_client(payload);
        }
        if self.refused {
            return;
        }
        if let Err(refused) = self.parts(context, payload) {
            self.refused = true;
            context.print(Level::Warn, format_args!("closed because of the client: {refused}"));
            context.send_to_client(format!("error {refused}\n").as_bytes());
            context.close(Port::CLIENT);
            context.close(Port::SERVER);
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        if let (Some(scene), Port::CLIENT) = (&self.scene, port) {
            let (frames, forwarded) = (scene.frames, scene.forwarded);
            context.print(Level::Info, format_args!("{forwarded} of {frames} frames were forwarded"));
        }
        context.close(port.opposite());
    }
}

cell!(Background);

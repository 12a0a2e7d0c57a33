//! The network: five convolutions and one matrix. Knows the weights' layout, not the source of
//! images.

use rten::{
    BufferPool,
    ops::{Padding, conv, matmul},
};
use rten_tensor::{NdTensor, Tensor, prelude::*};

use crate::render::{IMAGE_BYTES, SIDE};

/// Classes that an image can have.
pub const CLASSES: usize = 10;

/// A score for each class. Only differences are meaningful.
pub type Scores = [f32; CLASSES];

/// What `train/train.py` wrote: for each layer its kernel, then its bias.
static WEIGHTS: &[u8; 4 * weight_count()] = include_bytes!("../data/weights.bin");

/// Channels in, channels out, and the stride of a layer's kernels. `train/train.py` has the same list.
const LAYERS: [Shape; 5] = [
    Shape { inputs: 3, outputs: 16, stride: 1 },
    Shape { inputs: 16, outputs: 32, stride: 1 },
    Shape { inputs: 32, outputs: 32, stride: 2 },
    Shape { inputs: 32, outputs: 64, stride: 2 },
    Shape { inputs: 64, outputs: 32, stride: 2 },
];

/// The sides of every kernel.
const KERNEL: usize = 3;

/// Outputs of the last convolution for an image: channels and 4 x 4 places.
const FEATURES: usize = 32 * 4 * 4;

#[derive(Clone, Copy)]
struct Shape {
    inputs: usize,
    outputs: usize,
    stride: usize,
}

/// Number of weights in all layers.
const fn weight_count() -> usize {
    let mut count = CLASSES * FEATURES + CLASSES;
    let mut at = 0;
    while at < LAYERS.len() {
        count += LAYERS[at].outputs * (LAYERS[at].inputs * KERNEL * KERNEL + 1);
        at += 1;
    }
    count
}

/// One convolution.
struct Layer {
    kernel: Tensor<f32>,
    bias: NdTensor<f32, 1>,
    stride: usize,
}

/// The unpacked weights, and memory that is reused for each image.
pub struct Network {
    layers: Vec<Layer>,
    /// Matrix from features to classes.
    last: Tensor<f32>,
    last_bias: Scores,
    pool: BufferPool,
}

impl Default for Network {
    fn default() -> Self {
        let mut numbers = WEIGHTS.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let mut take = |count: usize| numbers.by_ref().take(count).collect::<Vec<f32>>();
        let layer = |shape: &Shape| Layer {
            kernel: Tensor::from_data(
                &[shape.outputs, shape.inputs, KERNEL, KERNEL],
                take(shape.outputs * shape.inputs * KERNEL * KERNEL),
            ),
            bias: NdTensor::from_data([shape.outputs], take(shape.outputs)),
            stride: shape.stride,
        };
        let layers = LAYERS.iter().map(layer).collect();
        let last = Tensor::from_data(&[CLASSES, FEATURES], take(CLASSES * FEATURES));
        let last_bias = take(CLASSES).try_into().expect("the file is as long as the layers say");
        Self { layers, last, last_bias, pool: BufferPool::new() }
    }
}

impl Network {
    /// The scores of an image.
    #[must_use]
    pub fn scores(&self, image: &[u8; IMAGE_BYTES]) -> Scores {
        let pixels: Vec<f32> = image.iter().map(|byte| f32::from(*byte) / 127.5 - 1.0).collect();
        let mut values = Tensor::from_data(&[1, 3, SIDE, SIDE], pixels);
        for layer in &self.layers {
            values = layer.apply(&self.pool, &values);
        }
        let features = values.into_shape([FEATURES, 1]).into_dyn();
        let scores = matmul(&self.pool, self.last.view(), features.view(), None)
            .expect("the last matrix takes features");
        let scores = scores.iter().zip(self.last_bias).map(|(score, bias)| score + bias);
        scores.collect::<Vec<_>>().try_into().expect("one score a class")
    }
}

impl Layer {
    /// Convolves, adds the bias, and sets negative values to zero.
    fn apply(&self, pool: &BufferPool, values: &Tensor<f32>) -> Tensor<f32> {
        let strides = [self.stride; 2];
        let bias = Some(self.bias.view());
        let mut values =
            conv(pool, values.view(), self.kernel.view(), bias, Padding::Same, 1, &strides, &[1, 1])
                .expect("each layer takes what the one before it gives");
        values.apply(|value| value.max(0.0));
        values
    }
}

/// The class with the highest score; the first of equal ones.
#[must_use]
pub fn best(scores: &Scores) -> usize {
    let mut best = 0;
    for (class, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = class;
        }
    }
    best
}

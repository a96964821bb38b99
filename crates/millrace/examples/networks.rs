//! Two small networks with fixed weights, one that looks and one that listens, on every device, in `f32` and in eight bits.
//!
//! `cargo run --release -p millrace --example networks`

#![allow(clippy::print_stdout, reason = "an example talks")]

use millrace::tensor::{
    Conv, Pool, Recurrent, Result, Tensor, Tensors,
    quant::{Calibration, Parameters, Scheme},
};

const SIDE: usize = 16;
const PATTERNS: [&str; 4] = ["lying", "standing", "falling", "rising"];

/// A picture of lines in one of four directions.
fn picture(pattern: usize, phase: usize) -> Vec<f32> {
    let line = |y: usize, x: usize| match pattern {
        0 => y,
        1 => x,
        2 => x + SIDE - y,
        _ => x + y,
    };
    (0..SIDE * SIDE).map(|n| if (line(n / SIDE, n % SIDE) + phase).is_multiple_of(4) { 1.0 } else { 0.0 }).collect()
}

/// A convolution looks for lines, pooling keeps the clearest, and a second convolution decides.
struct Looking {
    lines: Tensor,
    decision: Tensor,
    means: Tensor,
    variances: Tensor,
}

impl Looking {
    fn new(tensors: &Tensors) -> Result<Self> {
        #[rustfmt::skip]
        let lines = [
            -1.0, -1.0, -1.0,  2.0,  2.0,  2.0, -1.0, -1.0, -1.0f32, // lying
            -1.0,  2.0, -1.0, -1.0,  2.0, -1.0, -1.0,  2.0, -1.0,    // standing
             2.0, -1.0, -1.0, -1.0,  2.0, -1.0, -1.0, -1.0,  2.0,    // falling
            -1.0, -1.0,  2.0, -1.0,  2.0, -1.0,  2.0, -1.0, -1.0,    // rising
        ];
        // Each for its own direction and against the others.
        let decision: Vec<f32> = (0..16).map(|n| if n % 5 == 0 { 1.0 } else { -0.25 }).collect();
        Ok(Self {
            lines: tensors.from_slice(&lines, &[4, 1, 3, 3])?,
            decision: tensors.from_slice(&decision, &[4, 4, 1, 1])?,
            means: tensors.full(&[4], 0.5f32)?,
            variances: tensors.full(&[4], 4.0f32)?,
        })
    }

    /// From the lines on both go the same way.
    fn decide(&self, lines: &Tensor, last: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let seen = lines.relu()?.batch_norm(&self.means, &self.variances, None, None, 1e-5)?;
        let clearest = seen.max_pool(2, &Pool::new())?;
        last(&clearest)?.mean(&[2, 3])
    }

    fn run(&self, x: &Tensor) -> Result<Tensor> {
        let lines = x.conv(&self.lines, None, &Conv::new().padding(1))?;
        self.decide(&lines, |x| x.conv(&self.decision, None, &Conv::new()))
    }

    /// Both convolutions in eight bits: weights with a scale for each filter, pictures with one for all.
    fn run_in_eight_bits(&self, x: &Tensor) -> Result<Tensor> {
        let by_filter = |weight: &Tensor| {
            let scheme = Scheme::symmetric().per_channel(0);
            weight.quantize(&Parameters::calibrate(weight, scheme, Calibration::MinMax)?)
        };
        let whole = |x: &Tensor| x.quantize(&Parameters::calibrate(x, Scheme::affine(), Calibration::MinMax)?);
        let lines = whole(x)?.conv(&by_filter(&self.lines)?, &Conv::new().padding(1))?;
        let decision = by_filter(&self.decision)?;
        self.decide(&lines, |x| whole(x)?.conv(&decision, &Conv::new()))
    }
}

/// An LSTM over sequences of three numbers, and a readout of its last state.
struct Listening {
    network: Recurrent,
    weights: Tensor,
    readout: Tensor,
}

impl Listening {
    fn new(tensors: &Tensors) -> Result<Self> {
        let network = Recurrent::lstm(3, 24).layers(2).batch_first(true);
        let weights = tensors.rand(&[network.weights_len()], 1)?.sub(0.5)?.mul(0.4)?;
        Ok(Self { network, weights, readout: tensors.rand(&[24, 4], 2)?.sub(0.5)? })
    }

    fn last(&self, x: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let hidden = x.recurrent(&self.network, weights, None)?.state.hidden;
        hidden.slice(0, 1..)?.squeeze(0) // of the last layer
    }

    fn run(&self, x: &Tensor) -> Result<Tensor> {
        self.last(x, &self.weights)?.matmul(&self.readout)
    }

    /// The weights are kept in eight bits, and the readout multiplies them.
    fn run_in_eight_bits(&self, x: &Tensor) -> Result<Tensor> {
        let whole = |x: &Tensor| x.quantize(&Parameters::calibrate(x, Scheme::symmetric(), Calibration::MinMax)?);
        let weights = whole(&self.weights)?.dequantize()?;
        whole(&self.last(x, &weights)?)?.matmul(&whole(&self.readout)?)
    }
}

/// What both networks say in both ways.
struct Said {
    patterns: Vec<i32>,
    in_eight_bits: Vec<i32>,
    looked: [Vec<f32>; 2],
    heard: [Vec<f32>; 2],
    looking_db: f64,
    listening_db: f64,
}

fn run(tensors: &Tensors) -> Result<Said> {
    let pictures: Vec<f32> = (0..8).flat_map(|n| picture(n % 4, n / 4)).collect();
    let x = tensors.from_slice(&pictures, &[8, 1, SIDE, SIDE])?;
    let looking = Looking::new(tensors)?;
    let (seen, seen_8) = (looking.run(&x)?, looking.run_in_eight_bits(&x)?);
    let sound = tensors.rand(&[4, 20, 3], 3)?.sub(0.5)?;
    let listening = Listening::new(tensors)?;
    let (heard, heard_8) = (listening.run(&sound)?, listening.run_in_eight_bits(&sound)?);
    Ok(Said {
        patterns: seen.argmax(1)?.to_vec()?,
        in_eight_bits: seen_8.argmax(1)?.to_vec()?,
        looking_db: seen_8.accuracy_against(&seen)?.signal_to_noise_db,
        listening_db: heard_8.accuracy_against(&heard)?.signal_to_noise_db,
        looked: [seen.to_vec()?, seen_8.to_vec()?],
        heard: [heard.to_vec()?, heard_8.to_vec()?],
    })
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = millrace::runtime();
    let first = run(&Tensors::on(&runtime.open("cpu")?)?)?;
    let names: Vec<_> = first.patterns.iter().map(|&n| PATTERNS[n as usize]).collect();
    println!("pictures of lines, seen as: {}", names.join(", "));
    for found in runtime.devices().iter().filter(|found| found.unavailable.is_none()) {
        let said = run(&Tensors::on(&runtime.open(&found.id)?)?)?;
        println!("{} ({})", found.id, found.name);
        println!("  looking:   {:.1} dB above the noise of eight bits", said.looking_db);
        println!("  listening: {:.1} dB", said.listening_db);
        for (name, at) in [("f32", 0), ("eight bits", 1)] {
            let looked = apart(&said.looked[at], &first.looked[at]);
            let heard = apart(&said.heard[at], &first.heard[at]);
            println!("  {name}: at most {looked:.1e} and {heard:.1e} from the CPU");
            if looked > 1e-3 || heard > 1e-3 {
                return Err(format!("{} gives other results than the CPU", found.id).into());
            }
        }
        let right: Vec<i32> = (0..8).map(|n| n % 4).collect();
        if said.patterns != right || said.in_eight_bits != right {
            return Err(format!("{} sees {:?} and {:?}", found.id, said.patterns, said.in_eight_bits).into());
        }
    }
    println!("every picture was recognized on every device, in f32 and in eight bits");
    Ok(())
}

//! Two streams that overlap: one fills frames, the other sums each frame once it is there.

#![allow(clippy::print_stdout, clippy::expect_used, reason = "an example talks")]

use millrace::prelude::*;

const FRAME: usize = 1 << 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = millrace::runtime().open("cpu")?;
    let sum = device.kernel(
        &KernelSpec::new("sum").binding::<u8>("frame", Access::Read).binding::<u64>("sum", Access::Overwrite).cpu(
            CpuKernel::whole(|launch| {
                let total = launch.input::<u8>(0).iter().map(|b| u64::from(*b)).sum();
                launch.output::<u64>(1)[0] = total;
            }),
        ),
    )?;
    let (filling, summing) = (device.stream()?, device.stream()?);

    // Everything is in flight before anything is waited for.
    let mut sums = Vec::new();
    for frame in 0..16u8 {
        let (pixels, result) = (device.allocate(FRAME)?, device.allocate(8)?);
        filling.submit(pixels.fill(.., frame))?;
        let filled = filling.mark()?;
        summing.submit(filled.wait())?;
        summing.submit(sum.launch().bind(&pixels).bind(&result))?;
        sums.push((frame, summing.submit(result.read(..))?));
    }
    for (frame, ticket) in sums {
        let sum = ticket.wait()?.to::<u64>()[0];
        println!("frame {frame:2}: {sum}");
        assert_eq!(sum, u64::from(frame) * FRAME as u64);
    }
    Ok(())
}

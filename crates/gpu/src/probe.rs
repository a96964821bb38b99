//! Probes: known faults of drivers, looked for when a device is opened. Silent wrong data is the worst failure there is.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use millrace_core::{Error, Result};

use crate::{device::guarded, submission::awake};

/// Loops longer than what the worst known driver runs, nested, and counts; and a sum that every device gets right.
const SOURCE: &str = "
@group(0) @binding(0) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(8)
fn main(@builtin(local_invocation_id) id: vec3<u32>) {
    // The bounds come from memory, so that no compiler can know the answer.
    let outer = out[8];
    let inner = out[9];
    var turns = 0u;
    for (var i = 0u; i < outer; i++) {
        for (var j = 0u; j < inner; j++) {
            turns += 1u + id.x - id.x;
        }
    }
    out[id.x] = turns;
    let x = f32(out[10] + id.x);
    out[16u + id.x] = u32(sqrt(x * x) + 0.5);
}
";

const OUTER: u32 = 400;
const INNER: u32 = 250;
const BYTES: u64 = 4 * 32;

/// How long a probe may take, and for how long it is waited for without sleeping: the first thing that a device does decides
/// where the threads of a software driver are.
const PATIENCE: Duration = Duration::from_secs(10);
const WAKEFUL: Duration = Duration::from_millis(100);

/// Runs the probes on a fresh device; says in words what is wrong with its driver. An error if it cannot compute.
pub(crate) fn run(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Vec<String>> {
    let words = measure(device, queue)?;
    let mut findings = Vec::new();
    let turns = words[..8].iter().copied().min().unwrap_or(0);
    if turns != OUTER * INNER {
        findings.push(format!(
            "the driver ends loops early: {} turns were asked of a thread, {turns} were made, and no error was given; \
             kernels must stay below that",
            OUTER * INNER
        ));
    }
    let wrong = (0..8).filter(|&i| words[16 + i] != 100 + i as u32).count();
    if wrong > 0 {
        return Err(Error::Device(format!("a small known kernel gave {wrong} wrong results of 8").into()));
    }
    Ok(findings)
}

/// Turns that the loops of a thread can make, where the driver ends them early.
pub(crate) fn turns(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Option<u32>> {
    let words = measure(device, queue)?;
    Ok(words[..8].iter().copied().min().filter(|&turns| turns < OUTER * INNER))
}

fn measure(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Vec<u32>> {
    let failed = |error: String| Error::Device(format!("the probes do not run: {error}").into());
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let buffer = |usage, mapped| {
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size: BYTES, usage, mapped_at_creation: mapped })
    };
    let submitted = guarded(device, || {
        let storage = buffer(usage, false);
        let back = buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST, false);
        let mut start = [0u32; 32];
        start[8..11].copy_from_slice(&[OUTER, INNER, 100]);
        queue.write_buffer(&storage, 0, bytemuck::bytes_of(&start));
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some("probe"),
            source: wgpu::ShaderSource::Wgsl(SOURCE.into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some("probe"),
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let entries = [wgpu::BindGroupEntry { binding: 0, resource: storage.as_entire_binding() }];
        let layout = pipeline.get_bind_group_layout(0);
        let group =
            device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout: &layout, entries: &entries });
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
        drop(pass);
        encoder.copy_buffer_to_buffer(&storage, 0, &back, 0, BYTES);
        let index = queue.submit([encoder.finish()]);
        (back, index)
    });
    let (back, index) = submitted.map_err(|error| failed(error.to_string()))?;
    let (sender, receiver) = mpsc::channel();
    back.map_async(wgpu::MapMode::Read, .., move |result| _ = sender.send(result));
    awake(Instant::now() + WAKEFUL, || {
        Ok(matches!(device.poll(wgpu::PollType::Poll), Ok(wgpu::PollStatus::QueueEmpty)))
    })?;
    let wait = wgpu::PollType::Wait { submission_index: Some(index), timeout: Some(PATIENCE) };
    device.poll(wait).map_err(|error| failed(error.to_string()))?;
    match receiver.try_recv() {
        Ok(Ok(())) => {}
        _ => return Err(failed("the result cannot be mapped".to_owned())),
    }
    let words = back.get_mapped_range(..).map_err(|error| failed(error.to_string()))?;
    Ok(bytemuck::pod_collect_to_vec(&words))
}

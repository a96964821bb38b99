//! The tasks with wgpu by hand.

use super::{
    Job, Task,
    task::{Payloads, arrived, brought},
};
use crate::{
    Error, Result,
    raw_wgpu::{Mapped, Operation, Raw, Staged, touch},
};

/// Makes a task ready. Transfers use staging buffers, or with `mapped` the buffer itself, where the adapter offers that.
pub fn by_hand(raw: &Raw, task: &Task, mapped: bool) -> Result<Box<dyn Job>> {
    let inputs = task.inputs();
    let operation = match *task {
        Task::Empty => Operation::empty(raw)?,
        Task::Relus { .. } => Operation::relus(raw, &inputs)?,
        Task::Add(_) => Operation::add(raw, &inputs[0], &inputs[1])?,
        Task::Sum(_) => Operation::sum(raw, &inputs[0])?,
        Task::Matmul(size) => Operation::matmul(raw, &inputs[0], &inputs[1], size)?,
        Task::Upload(bytes) => {
            return Ok(Box::new(Upload { way: Way::new(raw, bytes, mapped)?, payloads: Payloads::new(bytes) }));
        }
        Task::Download(bytes) => {
            let (mut way, (payload, last)) = (Way::new(raw, bytes, mapped)?, Payloads::new(bytes).next());
            arrived(way.upload(&payload)?, last)?;
            return Ok(Box::new(Download { way, expected: touch(&payload) }));
        }
    };
    Ok(Box::new(Checked { task: task.clone(), operation }))
}

struct Checked {
    task: Task,
    operation: Operation,
}

impl Job for Checked {
    fn run(&mut self) -> Result<()> {
        self.operation.run()
    }

    fn check(&mut self) -> Result<()> {
        self.task.check(&self.operation.outputs()?)
    }
}

/// How bytes get there and back.
enum Way {
    Staged(Staged),
    Mapped(Mapped),
}

impl Way {
    fn new(raw: &Raw, bytes: usize, mapped: bool) -> Result<Self> {
        if mapped {
            let none = || Error::Device("raw wgpu: the adapter does not map buffers of kernels".to_owned());
            return Ok(Self::Mapped(Mapped::new(raw, bytes as u64).ok_or_else(none)?));
        }
        Ok(Self::Staged(Staged::new(raw, bytes as u64)?))
    }

    fn upload(&mut self, bytes: &[u8]) -> Result<u32> {
        match self {
            Self::Staged(staged) => staged.upload(bytes),
            Self::Mapped(mapped) => mapped.upload(bytes),
        }
    }

    fn download(&mut self) -> Result<u64> {
        match self {
            Self::Staged(staged) => staged.download(),
            Self::Mapped(mapped) => mapped.download(),
        }
    }
}

struct Upload {
    way: Way,
    payloads: Payloads,
}

impl Job for Upload {
    fn run(&mut self) -> Result<()> {
        let (payload, last) = self.payloads.next();
        arrived(self.way.upload(&payload)?, last)
    }

    /// Every run was.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }
}

struct Download {
    way: Way,
    expected: u64,
}

impl Job for Download {
    fn run(&mut self) -> Result<()> {
        brought(self.way.download()?, self.expected)
    }

    /// Every run was.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }
}

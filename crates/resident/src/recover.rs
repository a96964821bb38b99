//! Going on after a device was lost.

use std::{marker::PhantomData, time::Instant};

use millrace_core::Device;

use crate::{
    Command, Error, Handler, Resident, Result, Status,
    journal::{Entry, is_before},
    layout::flags,
    port::{Head, Outgoing},
    resident::{Base, plan},
    sync::Ordering,
};

impl<H: Handler> Resident<H> {
    /// Goes on with a kernel whose device was lost: opens the device for kernels that stay anew, launches the kernel with
    /// the state of its last checkpoint, and sends it again what that does not contain. The state sees every message
    /// that was sent exactly once, in the order of its ring. Only what had not been answered is answered: to those who
    /// receive. Who asked was told of the loss.
    ///
    /// It needs [`LaunchOptions::checkpoint_every`](crate::LaunchOptions::checkpoint_every), because without it nobody
    /// keeps what was sent; and it is for kernels without links, because their checkpoints are not made together.
    /// Answers that nobody received before the loss are still to be received from the old handle.
    ///
    /// ```
    /// # use millrace_resident::*;
    /// # struct Nothing;
    /// # impl Handler for Nothing {
    /// #     type Message = (); type Reply = (); type State = ();
    /// #     fn state(&self) {}
    /// #     fn handle(&mut self, _: &mut (), _: &(), _: &mut Scope<'_, ()>) {}
    /// # }
    /// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
    /// # let device = runtime.open("cpu")?;
    /// let kernel = device.launch(Nothing, LaunchOptions::default().checkpoint_every(100))?;
    /// assert!(matches!(kernel.recover(), Err(Error::Unsupported { .. })), "the processor is not lost");
    /// # Ok::<(), Error>(())
    /// ```
    pub fn recover(&self) -> Result<Self> {
        self.recover_on(&self.base.device)
    }

    /// [`Self::recover`] on another device, or on a new generation of the same.
    pub fn recover_on(&self, device: &Device) -> Result<Self> {
        let (port, unsupported) = (self.port(), |why| {
            let device = self.base.device.info().id.as_str().into();
            Err(Error::Unsupported { what: "recovery", device, why })
        });
        let Some(recovery) = &self.base.recovery else {
            return unsupported("a kernel there fails by its handler only: see `restart`");
        };
        let Some(journal) = port.journal.get() else {
            return unsupported("the kernel was launched without `checkpoint_every`");
        };
        if !self.links().is_empty() {
            return unsupported("the kernel is linked to others");
        }
        if port.status() != Status::Failed {
            return Err(Error::NotFrom { from: port.status(), to: Status::Launched });
        }
        let (state, reached) = (recovery.state(), recovery.reached());
        // Those who were sending when it failed have written their messages down once they are in the ring.
        let deadline = Instant::now() + device.timeout();
        while !port.is_all_published(reached) {
            if Instant::now() > deadline {
                return Err(Error::Deadline);
            }
            std::thread::yield_now();
        }
        let entries = journal.since_checkpoint();
        let told = Command::from_word(port.region.control().command.load(Ordering::Relaxed));
        let mut options = self.base.options.clone();
        options.active = true;
        let plan = plan::<H>(&state, &[], &options);
        let base = Base::launched(device, &plan, recovery.relaunch(device, &plan)?);
        let send = |entry: &Entry, flags: u32| {
            base.port.clock.see(entry.clock);
            let head = Head { high: entry.high, kind: entry.kind, flags, clock: entry.clock, buffer: (0, 0) };
            let mut outgoing = Outgoing { head, bytes: &entry.bytes, attachment: &mut None };
            base.port.inject_blocking(&mut outgoing, None).map(drop)
        };
        // Those that were handled take no room in the outbound ring, so they all get through; the others were in the
        // rings when the device was lost, so they all fit.
        for entry in entries.iter().filter(|entry| is_before(entry, reached)) {
            send(entry, flags::SILENT)?;
        }
        if matches!(told, Some(Command::Pause | Command::Wait) | None) {
            base.port.steer(Command::Pause)?;
        }
        for entry in entries.iter().filter(|entry| !is_before(entry, reached)) {
            send(entry, if entry.ask { flags::SILENT } else { 0 })?;
        }
        if told == Some(Command::Drain) {
            base.port.tell(Command::Drain);
        }
        Ok(Self { base, handler: PhantomData })
    }
}

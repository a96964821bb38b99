//! Going on after a device was lost, or a handler failed for good.

use std::{marker::PhantomData, time::Instant};

use millrace_core::Device;

use crate::{
    ArchivedHandler, ArchivedResident, Command, Error, Handler, LaunchOptions, Resident, Result, Status,
    engine::{Again, Plan},
    port::lock,
    resident::Base,
    sync::Ordering,
};

impl<H: Handler> Resident<H> {
    /// Goes on with a kernel whose device was lost, or, on the CPU, whose handler panicked more often than its restart
    /// policy allows: launches it with the state of its last checkpoint, and sends it again what that does not contain.
    /// The state sees every message that was sent exactly once, in the order of its ring; except for one whose handler
    /// panicked, which is not tried again. Only what had not been answered is answered: to those who receive. Who asked
    /// was told of the loss. On the CPU the handler is the same value, after [`Handler::restarted`].
    ///
    /// Links and subscriptions stay, to it and from it. Kernels that send to it without loss wait while it is gone, until
    /// it is recovered or its handle is dropped.
    ///
    /// It needs [`LaunchOptions::checkpoint_every`](crate::LaunchOptions::checkpoint_every), because without it nobody
    /// keeps what was sent. Answers that nobody received before the loss are still to be received from the old handle.
    /// If it fails, it can be tried again. Of several who try at once one gets the kernel, and the others an error.
    ///
    /// ```
    /// # use millrace_resident::*;
    /// # #[derive(Clone, Copy, Message)] #[repr(C)] struct Number { value: u32 }
    /// # struct Sum;
    /// # impl Handler for Sum {
    /// #     type Message = Number; type Reply = (); type State = Number;
    /// #     fn state(&self) -> Number { Number { value: 0 } }
    /// #     fn handle(&mut self, sum: &mut Number, n: &Number, _: &mut Scope<'_, ()>) {
    /// #         assert!(n.value != 13);
    /// #         sum.value += n.value
    /// #     }
    /// # }
    /// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
    /// # let device = runtime.open("cpu")?;
    /// let sum = device.launch(Sum, LaunchOptions::default().checkpoint_every(100))?;
    /// for value in [1, 2, 3] {
    ///     sum.send(Number { value })?;
    /// }
    /// assert!(sum.ask(Number { value: 13 }).is_err()); // it panics, and the kernel fails
    /// let sum = sum.recover()?;
    /// assert_eq!(sum.checkpoint()?.state.value, 6);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn recover(&self) -> Result<Self> {
        self.recover_on(&self.base.device)
    }

    /// [`Self::recover`] on another device, or on a new generation of the same.
    pub fn recover_on(&self, device: &Device) -> Result<Self> {
        let base = recovered(&self.base, device, |state, options| crate::resident::plan::<H>(state, &[], options))?;
        Ok(Self { base, handler: PhantomData })
    }
}

impl<H: ArchivedHandler> ArchivedResident<H> {
    /// Goes on with a kernel that failed, as [`Resident::recover`] does. Archives that did not fit into their slots are
    /// kept by handle until a checkpoint contains them, and sent again by handle.
    ///
    /// ```
    /// # use millrace_resident::*;
    /// # #[derive(Clone, Copy, Message)] #[repr(C)] struct Number { value: u32 }
    /// # struct Length;
    /// # impl ArchivedHandler for Length {
    /// #     type Message = String; type Reply = u32; type State = Number;
    /// #     fn state(&self) -> Number { Number { value: 0 } }
    /// #     fn handle(&mut self, sum: &mut Number, text: &rkyv::Archived<String>, _: &mut Scope<'_, u32>) -> u32 {
    /// #         assert!(*text != "panic");
    /// #         sum.value += text.len() as u32;
    /// #         sum.value
    /// #     }
    /// # }
    /// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
    /// # let device = runtime.open("cpu")?;
    /// let length = device.launch_archived(Length, LaunchOptions::default().checkpoint_every(100))?;
    /// length.ask(&"mill".into())?;
    /// assert!(length.ask(&"panic".into()).is_err());
    /// let length = length.recover()?;
    /// assert_eq!(*length.ask(&"race".into())?, 8);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn recover(&self) -> Result<Self> {
        self.recover_on(&self.base.device)
    }

    /// [`Self::recover`] on another context of the same device.
    pub fn recover_on(&self, device: &Device) -> Result<Self> {
        recovered(&self.base, device, crate::archive::plan::<H>).map(Self::over)
    }
}

/// Launches a kernel that was lost, and sends it again what it has to be sent.
fn recovered(
    lost: &Base,
    device: &Device,
    plan: impl for<'p> FnOnce(&'p [u8], &'p LaunchOptions) -> Plan<'p>,
) -> Result<Base> {
    let port = &lost.port;
    let Some(recovery) = lost.recovery.as_ref().filter(|_| port.journal.get().is_some()) else {
        let (what, device) = ("recovery", lost.device.info().id.as_str().into());
        return Err(Error::Unsupported { what, device, why: "the kernel was launched without `checkpoint_every`" });
    };
    let _recovering = lock(&port.recovering);
    if port.has_returned() {
        return Err(Error::Invalid("the kernel has been recovered already, and is what that gave".into()));
    }
    // Who was told of a panic may be here before the kernel has ended.
    if port.is_failing() {
        port.wait_for_mail(None, || port.status().is_ended().then_some(()))?;
    }
    if port.status() != Status::Failed {
        return Err(Error::NotFrom { from: port.status(), to: Status::Launched });
    }
    let (state, reached) = (recovery.state(), recovery.reached()?);
    // Those who were sending when it failed have written their messages down once they are in the ring.
    let deadline = Instant::now() + device.timeout();
    while !port.is_all_published(reached) {
        if Instant::now() > deadline {
            return Err(Error::Deadline);
        }
        std::thread::yield_now();
    }
    let told = Command::from_word(port.region.control().command.load(Ordering::Relaxed));
    let entries = port.journal.get().map(|journal| journal.since_checkpoint()).unwrap_or_default();
    let (links, paused) = (lost.links.clone(), told == Some(Command::Pause));
    let options = LaunchOptions { active: false, ..lost.options.clone() };
    let plan = plan(&state, &options);
    let again = Again { links, entries: &entries, reached, paused };
    let mut launched = recovery.relaunch(device, &plan, again)?;
    let caught_up = launched.caught_up.take();
    let base = Base::launched(device, &plan, launched);
    if let Err(error) = base.port.wait_while_working(|| caught_up.as_ref().is_none_or(|caught_up| caught_up())) {
        recovery.take_back(&base.port, reached);
        return Err(error);
    }
    // From here on it is the kernel: what it does is seen by others.
    port.succeed(&base.port);
    base.links.look_again();
    if matches!(told, Some(Command::Activate | Command::Drain)) {
        base.port.resume(Command::Activate);
    }
    if told == Some(Command::Drain) {
        base.port.resume(Command::Drain);
    }
    Ok(base)
}

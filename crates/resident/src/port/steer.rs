//! Telling a kernel what to do, and whether it did.

use std::sync::atomic::Ordering;

use super::{Port, Saved, lock};
use crate::{Command, Error, Result, Status};

impl Port {
    /// Tells the kernel what to do. Gives the number of the request; none if it is so already.
    fn request(&self, command: Command) -> Result<Option<u32>> {
        let _steering = lock(&self.steering);
        let (control, from) = (self.region.control(), self.status());
        let told = Command::from_word(control.command.load(Ordering::Relaxed)).unwrap_or(Command::Wait);
        let to = match command {
            Command::Wait => Status::Launched,
            Command::Activate => Status::Active,
            Command::Pause => Status::Paused,
            Command::Drain => Status::Draining,
            Command::Terminate => Status::Terminated,
        };
        if from == Status::Failed && command != Command::Terminate {
            return Err(self.ended());
        }
        let ending = matches!(told, Command::Drain | Command::Terminate) || from.is_ended();
        let allowed = match command {
            Command::Wait => false,
            Command::Activate => !ending,
            Command::Pause => !ending && told != Command::Wait,
            Command::Drain => !from.is_ended() && told != Command::Terminate,
            Command::Terminate => true,
        };
        if !allowed {
            return Err(Error::NotFrom { from, to });
        }
        if told == command || from.is_ended() {
            return Ok(Some(control.request.load(Ordering::Relaxed)));
        }
        if matches!(command, Command::Drain | Command::Terminate) {
            let (high, normal) = self.close();
            control.drain_high.store(high, Ordering::Relaxed);
            control.drain_normal.store(normal, Ordering::Relaxed);
        }
        control.command.store(command as u32, Ordering::Relaxed);
        Ok(Some(self.bump()))
    }

    /// Makes the kernel look at the host's line.
    fn bump(&self) -> u32 {
        let request = &self.region.control().request;
        let number = request.load(Ordering::Relaxed).wrapping_add(1);
        request.store(number, Ordering::Release);
        self.work.ring();
        number
    }

    /// Whether a request took effect.
    fn is_acknowledged(&self, number: u32) -> Option<Result<()>> {
        let ended = self.status().is_ended();
        let acknowledged = self.region.control().acknowledged.load(Ordering::Acquire);
        (ended || acknowledged.wrapping_sub(number) as i32 >= 0).then_some(Ok(()))
    }

    /// Whether the kernel is like that; an error if it never will be.
    pub(crate) fn has_become(&self, wanted: Status) -> Option<Result<()>> {
        let status = self.status();
        if status == wanted {
            return Some(Ok(()));
        }
        status.is_ended().then(|| Err(self.ended()))
    }

    /// Tells the kernel what to do, without waiting for it.
    pub(crate) fn tell(&self, command: Command) {
        let _ = self.request(command);
    }

    /// [`Self::tell`] for a kernel that came back. If it has been lost again, what it would have been told is kept for when
    /// it comes back the next time.
    pub(crate) fn resume(&self, command: Command) {
        if self.request(command).is_err() {
            let _steering = lock(&self.steering);
            self.region.control().command.store(command as u32, Ordering::Relaxed);
        }
    }

    /// Tells the kernel what to do, and waits until it does.
    pub(crate) fn steer(&self, command: Command) -> Result<()> {
        let Some(number) = self.request(command)? else { return Ok(()) };
        self.wait_for_mail(None, || self.is_acknowledged(number)).flatten()
    }

    /// [`Self::steer`] for tasks.
    pub(crate) async fn steer_async(&self, command: Command) -> Result<()> {
        let Some(number) = self.request(command)? else { return Ok(()) };
        self.await_mail(|| self.is_acknowledged(number)).await
    }

    /// Asks for a checkpoint; gives its number.
    pub(crate) fn want_checkpoint(&self) -> u32 {
        let _steering = lock(&self.steering);
        let wanted = &self.region.control().checkpoint_wanted;
        let number = wanted.load(Ordering::Relaxed).wrapping_add(1);
        wanted.store(number, Ordering::Relaxed);
        self.bump();
        number
    }

    /// The last checkpoint.
    pub(crate) fn saved(&self) -> Option<Saved> {
        self.saved_at.get().map_or_else(|| lock(&self.saved).clone(), |read| read())
    }

    /// Whether a checkpoint was made; an error if it never will be.
    pub(crate) fn is_checkpointed(&self, number: u32) -> Option<Result<()>> {
        let ended = self.status().is_ended();
        let made = self.region.control().checkpoint_made.load(Ordering::Acquire);
        if made.wrapping_sub(number) as i32 >= 0 {
            return Some(Ok(()));
        }
        ended.then(|| Err(self.ended()))
    }
}

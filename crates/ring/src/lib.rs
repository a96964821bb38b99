//! Bounded lock-free rings, adaptive waiting and pooled reply slots.
//!
//! This room moves values between threads and brings threads together, and nothing else: it knows no device, no command and
//! no runtime. What it promises:
//!
//! - **Bounded.** A ring holds exactly as many messages as it was made for. [`mpsc`] takes any number of senders,
//!   [`spsc`] takes one and is faster.
//! - **Lossless.** What could not be sent comes back to the caller. What was sent is received, also after a close; what
//!   is never received is dropped exactly once.
//! - **Every way to wait**, on both ends: not at all, blocking, until a deadline, or as a future on any executor.
//! - **Quiet.** A waiter polls for about as long as a wake-up would cost and then sleeps; an idle ring uses no processor
//!   time, and nothing spins on a machine with one core.
//! - **No allocation per message.** Requests get their answers through a [`reply::ReplyPool`], and anything else that
//!   would have to be allocated over and over can come from a [`Slab`].
//! - **One is not charged for many.** A [`Solo`] lets a thread do alone, and so without atomic read-modify-writes, what no
//!   other thread does.
//! - **Hands when there is work.** Threads of a [`Crew`] join a job that is worth several, as late as they like.
//!
//! Misuse does not compile: the ends are separate types, and the single-sender ring cannot be cloned.
//!
//! Every algorithm has a file of its own, which names its origin, and a loom model in `tests/loom`.

mod bell;
mod bias;
mod crew;
mod drops;
mod ends;
mod error;
mod fence;
mod kept;
mod lock;
pub mod mpsc;
mod poll;
mod prefetch;
pub mod reply;
mod slab;
mod solo;
pub mod spsc;
mod sync;
mod ticks;
mod turnstile;
mod wait;

pub use bell::{Bell, Seat, prefetch_to_write, sleep_until};
pub use bias::{Bias, Inside};
pub use crew::Crew;
pub use error::{
    CapacityError, MAX_CAPACITY, RecvDeadlineError, RecvError, SendDeadlineError, SendError, TryRecvError, TrySendError,
};
pub use kept::{Keep, Kept, put_behind};
pub use lock::{BriefGuard, BriefLock};
pub use poll::poll_while_worthwhile;
pub use slab::{Loan, MAX_OUT, Recycle, Slab};
pub use solo::{Alone, Solo};
pub use ticks::TickClock;
pub use turnstile::{Turn, Turnstile};
pub use wait::prepare;

//! What every side carries: one command type, the same for all.

use std::hint::black_box;

use bytes::Bytes;

/// A command, in the three sizes that matter. It is 168 bytes whichever it is, so every side moves the same.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "a launch carries its parameters in place; boxing would allocate")]
pub enum Message {
    /// Nothing but a tag.
    Synchronize,
    /// A kernel with its parameters in place.
    Launch {
        /// Which kernel.
        kernel: u64,
        /// Groups.
        grid: [u32; 3],
        /// Threads of a group.
        block: [u32; 3],
        /// Parameters.
        params: [u8; 128],
    },
    /// Bytes for a buffer, shared and not copied.
    Transfer {
        /// Which buffer.
        buffer: u64,
        /// Where in it.
        offset: u64,
        /// What.
        data: Bytes,
    },
}

impl Message {
    /// The smallest command.
    pub fn small() -> Self {
        Self::Synchronize
    }

    /// A launch with 128 bytes of parameters.
    pub fn medium() -> Self {
        Self::Launch { kernel: 7, grid: [64, 1, 1], block: [256, 1, 1], params: [3; 128] }
    }

    /// A transfer of `data`. Clones of the message share it.
    pub fn large(data: &Bytes) -> Self {
        Self::Transfer { buffer: 9, offset: 0, data: data.clone() }
    }
}

/// What a queue can carry and a consumer can look at.
pub trait Parcel: Clone + Send + 'static {
    /// Looks at what a consumer has to look at, and gives a number that both ends can add up: a message that was lost,
    /// doubled or not really read changes the sum.
    fn consume(self) -> u64;
}

/// One word: what is left when the queue alone counts.
impl Parcel for u64 {
    #[inline]
    fn consume(self) -> u64 {
        black_box(self)
    }
}

impl Parcel for Message {
    #[inline]
    fn consume(self) -> u64 {
        match black_box(self) {
            Self::Synchronize => 1,
            Self::Launch { kernel, grid, block, params } => {
                kernel + u64::from(grid[0]) + u64::from(block[0]) + u64::from(params[0]) + u64::from(params[127])
            }
            Self::Transfer { buffer, offset, data } => {
                let ends = data.first().zip(data.last()).map_or(0, |(a, b)| u64::from(*a) + u64::from(*b));
                buffer + offset + data.len() as u64 + ends
            }
        }
    }
}

/// `len` bytes in one allocation.
pub fn payload(len: usize) -> Bytes {
    Bytes::from(vec![5; len])
}

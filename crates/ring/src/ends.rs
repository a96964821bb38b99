//! What users of a ring call: every way to send and to receive, the same for both rings and documented once.
//!
//! How a ring works is in its own file, and how its ends wait in `wait.rs`. Of the examples differ the ring's module and whether a
//! sending end has to be mutable.

/// The methods of a sending end: of which ring, how examples bind it, and what sending borrows.
macro_rules! sending {
    ($module:literal, $tx:literal, [$($borrow:tt)+] $this:ident) => {
        /// Sends if there is room, and gives the message back if not.
        ///
        /// ```
        /// use millrace_ring::TrySendError;
        #[doc = concat!("let (", $tx, ", _rx) = millrace_ring::", $module, "::bounded(1)?;")]
        /// assert_eq!(tx.try_send("first"), Ok(()));
        /// assert_eq!(tx.try_send("second"), Err(TrySendError::Full("second")));
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        #[inline]
        pub fn try_send($($borrow)+ $this, message: T) -> Result<(), TrySendError<T>> {
            wait::try_send(&mut ($($borrow)+ *$this), message)
        }

        /// Sends, blocking while the ring is full.
        ///
        /// ```
        #[doc = concat!("let (", $tx, ", mut rx) = millrace_ring::", $module, "::bounded(1)?;")]
        /// tx.send(1).unwrap();
        /// let receiver = std::thread::spawn(move || [rx.recv(), rx.recv()]);
        /// tx.send(2).unwrap(); // as soon as there is room
        /// assert_eq!(receiver.join().unwrap(), [Ok(1), Ok(2)]);
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        #[inline]
        pub fn send($($borrow)+ $this, message: T) -> Result<(), SendError<T>> {
            wait::send(&mut ($($borrow)+ *$this), message, None).map_err(|e| SendError(e.into_inner()))
        }

        /// Sends, blocking while the ring is full, until the deadline at most.
        ///
        /// ```
        /// use std::time::{Duration, Instant};
        #[doc = concat!("let (", $tx, ", _rx) = millrace_ring::", $module, "::bounded(1)?;")]
        /// let soon = Instant::now() + Duration::from_millis(1);
        /// assert!(tx.send_deadline(1, soon).is_ok());
        /// assert!(tx.send_deadline(2, soon).is_err(), "it is full and stays so");
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        #[inline]
        pub fn send_deadline($($borrow)+ $this, message: T, deadline: Instant) -> Result<(), SendDeadlineError<T>> {
            wait::send(&mut ($($borrow)+ *$this), message, Some(deadline))
        }

        /// [`Self::send_deadline`] from now on.
        ///
        /// ```
        /// use std::time::Duration;
        #[doc = concat!("let (", $tx, ", mut rx) = millrace_ring::", $module, "::bounded(1)?;")]
        /// tx.send_timeout(1, Duration::from_secs(10)).unwrap();
        /// let late = tx.send_timeout(2, Duration::from_millis(1)).unwrap_err();
        /// assert_eq!((late.into_inner(), rx.recv()), (2, Ok(1)));
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        pub fn send_timeout($($borrow)+ $this, message: T, timeout: Duration) -> Result<(), SendDeadlineError<T>> {
            wait::send(&mut ($($borrow)+ *$this), message, wait::after(timeout))
        }

        /// Sends, awaiting room. Dropped before it is done, the future has sent nothing.
        ///
        /// ```
        #[doc = concat!("let (", $tx, ", mut rx) = millrace_ring::", $module, "::bounded(1)?;")]
        /// pollster::block_on(tx.send_async(7)).unwrap();
        /// assert_eq!(pollster::block_on(rx.recv_async()), Ok(7));
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        pub fn send_async(
            $($borrow)+ $this,
            message: T,
        ) -> impl Future<Output = Result<(), SendError<T>>> + Send + Unpin + '_ {
            Sending::new($this, message)
        }

        /// Closes the ring: nothing more can be sent, what was sent is still received.
        ///
        /// ```
        #[doc = concat!("let (", $tx, ", mut rx) = millrace_ring::", $module, "::bounded(2)?;")]
        /// tx.try_send(1).unwrap();
        /// tx.close();
        /// assert!(tx.is_closed() && tx.try_send(2).is_err());
        /// assert_eq!(rx.recv(), Ok(1));
        /// assert!(rx.recv().is_err());
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        pub fn close($($borrow)+ $this) {
            $this.ring.close();
        }

        /// Whether one of the ends closed the ring.
        ///
        /// ```
        #[doc = concat!("let (tx, rx) = millrace_ring::", $module, "::bounded::<u8>(1)?;")]
        /// assert!(!tx.is_closed());
        /// drop(rx);
        /// assert!(tx.is_closed());
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        pub fn is_closed(&$this) -> bool {
            $this.ring.is_closed()
        }

        /// Messages in the ring at some moment during the call.
        ///
        /// ```
        #[doc = concat!("let (", $tx, ", _rx) = millrace_ring::", $module, "::bounded(2)?;")]
        /// tx.try_send(1).unwrap();
        /// assert_eq!((tx.len(), tx.is_empty(), tx.capacity()), (1, false, 2));
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        pub fn len(&$this) -> usize {
            $this.ring.len()
        }

        /// Whether the ring was empty at some moment during the call.
        #[inline]
        pub fn is_empty(&$this) -> bool {
            $this.ring.is_empty()
        }

        /// How many messages fit.
        pub fn capacity(&$this) -> usize {
            $this.ring.capacity()
        }
    };
}

/// The methods of a receiving end: of which ring, and how examples bind the sending one.
macro_rules! receiving {
    ($module:literal, $tx:literal) => {
        /// Receives if a message is there.
        ///
        /// ```
        /// use millrace_ring::TryRecvError;
        #[doc = concat!("let (", $tx, ", mut rx) = millrace_ring::", $module, "::bounded(1)?;")]
        /// assert_eq!(rx.try_recv(), Err(TryRecvError::Empty));
        /// tx.try_send(7).unwrap();
        /// assert_eq!(rx.try_recv(), Ok(7));
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        #[inline]
        pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
            wait::try_recv(&mut &mut *self)
        }

        /// Receives, blocking while the ring is empty.
        ///
        /// ```
        #[doc = concat!("let (", $tx, ", mut rx) = millrace_ring::", $module, "::bounded(1)?;")]
        /// std::thread::spawn(move || tx.send(7)); // and then it is gone
        /// assert_eq!((rx.recv(), rx.recv()), (Ok(7), Err(millrace_ring::RecvError)));
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        #[inline]
        pub fn recv(&mut self) -> Result<T, RecvError> {
            wait::recv(&mut &mut *self)
        }

        /// Receives, blocking while the ring is empty, until the deadline at most.
        ///
        /// ```
        /// use std::time::{Duration, Instant};
        #[doc = concat!("let (", $tx, ", mut rx) = millrace_ring::", $module, "::bounded(1)?;")]
        /// tx.try_send(1).unwrap();
        /// let soon = Instant::now() + Duration::from_millis(1);
        /// assert_eq!(rx.recv_deadline(soon), Ok(1));
        /// assert!(rx.recv_deadline(soon).is_err(), "nothing else comes");
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        #[inline]
        pub fn recv_deadline(&mut self, deadline: Instant) -> Result<T, RecvDeadlineError> {
            wait::recv_until(&mut &mut *self, Some(deadline))
        }

        /// [`Self::recv_deadline`] from now on.
        ///
        /// ```
        /// use std::time::Duration;
        #[doc = concat!("let (", $tx, ", mut rx) = millrace_ring::", $module, "::bounded(1)?;")]
        /// assert!(rx.recv_timeout(Duration::from_millis(1)).is_err(), "nothing comes");
        /// tx.try_send(7).unwrap();
        /// assert_eq!(rx.recv_timeout(Duration::from_secs(10)), Ok(7));
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        pub fn recv_timeout(&mut self, timeout: Duration) -> Result<T, RecvDeadlineError> {
            wait::recv_until(&mut &mut *self, wait::after(timeout))
        }

        /// Receives, awaiting a message. Dropped before it is done, the future has received nothing.
        ///
        /// ```
        #[doc = concat!("let (", $tx, ", mut rx) = millrace_ring::", $module, "::bounded(1)?;")]
        /// std::thread::spawn(move || tx.send(7));
        /// assert_eq!(pollster::block_on(rx.recv_async()), Ok(7));
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        pub fn recv_async(&mut self) -> impl Future<Output = Result<T, RecvError>> + Send + Unpin + '_ {
            Receiving::new(self)
        }

        /// Hands up to `max` messages that are there to `each`, and says how many. Senders are woken once for all of them, also
        /// if `each` panics.
        ///
        /// ```
        #[doc = concat!("let (", $tx, ", mut rx) = millrace_ring::", $module, "::bounded(8)?;")]
        /// (0..5).for_each(|i| tx.try_send(i).unwrap());
        /// let mut got = Vec::new();
        /// assert_eq!((rx.drain(3, |i| got.push(i)), rx.drain(9, |i| got.push(i))), (3, 2));
        /// assert_eq!(got, [0, 1, 2, 3, 4]);
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        #[inline]
        pub fn drain(&mut self, max: usize, mut each: impl FnMut(T)) -> usize {
            struct Drained<'a, T>(&'a mut Receiver<T>, usize);
            impl<T> Drop for Drained<'_, T> {
                fn drop(&mut self) {
                    self.0.made_room(self.1);
                }
            }
            let mut drained = Drained(self, 0);
            while drained.1 < max && drained.0.has_next() {
                drained.1 += 1;
                let message = drained.0.read(|message| message);
                each(message);
            }
            if drained.1 < max {
                drained.0.emptied();
            }
            drained.1
        }

        /// Closes the ring: nothing more can be sent, what was sent can still be received.
        ///
        /// ```
        #[doc = concat!("let (", $tx, ", mut rx) = millrace_ring::", $module, "::bounded(2)?;")]
        /// tx.try_send(1).unwrap();
        /// rx.close();
        /// assert!(tx.try_send(2).is_err());
        /// assert_eq!((rx.len(), rx.recv()), (1, Ok(1)));
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        pub fn close(&mut self) {
            self.ring.close();
        }

        /// Messages in the ring at some moment during the call.
        ///
        /// ```
        #[doc = concat!("let (", $tx, ", rx) = millrace_ring::", $module, "::bounded(4)?;")]
        /// tx.try_send(1).unwrap();
        /// assert_eq!((rx.len(), rx.is_empty(), rx.capacity()), (1, false, 4));
        /// # Ok::<(), millrace_ring::CapacityError>(())
        /// ```
        pub fn len(&self) -> usize {
            self.ring.len()
        }

        /// How many messages fit.
        pub fn capacity(&self) -> usize {
            self.ring.capacity()
        }
    };
}

pub(crate) use {receiving, sending};

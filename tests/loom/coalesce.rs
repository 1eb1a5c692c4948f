//! The flight: joining against landing, leaving against joining, waking against parking.
//!
//! Each model has a leader, a joiner or two, and somebody who ends the work. Whatever the order, all who
//! stay are told, the work is dropped, and nothing is left in the table.

use std::{
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    task::{Context, Poll, Waker},
};

use loom::{sync::Mutex, thread};

use super::{
    caller::{Sat, Step, Ticket},
    driving::Driving,
    flight::{Home, Keep, Lost, Name, Outcome, Whose},
    orders::Replaced,
    parting::Departure,
    seat::{Seat, Turn},
    shards::{Entered, Limits, Space},
};
use crate::with::{Arc, until};

const PANICKED: u32 = 1000;
const SHUT: u32 = 1001;
const APART: u32 = 1002;

/// The table, and what the works of a run have in common.
struct Ground {
    space: Space<Here>,
    inner: Inner,
    /// Works that are alive, and all that ever were.
    live: AtomicUsize,
    made: AtomicUsize,
    polls: AtomicUsize,
    keep: Option<Keep>,
    private: bool,
}

type Here = Arc<Ground>;

/// What the work waits for: somebody else ends it.
#[derive(Default)]
struct Inner(Mutex<State>);

#[derive(Default)]
struct State {
    ended: bool,
    /// So many polls wake themselves.
    restless: usize,
    wakers: Vec<Waker>,
}

/// The work: what it holds is released when it is done.
struct Work {
    held: Option<Held>,
    number: u32,
}

struct Held(Here);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, SeqCst);
    }
}

impl Home for Here {
    type Key = u8;
    type Work = Work;
    type Value = u32;
    type Tag = ();

    const REUSE: bool = false;

    fn space(&self) -> &Space<Self> {
        &self.space
    }

    fn tag(&self) {}

    fn fly(&self, _: Name, mut work: Pin<&mut Work>, cx: &mut Context<'_>) -> Poll<Outcome<u32>> {
        self.polls.fetch_add(1, SeqCst);
        let waker = cx.waker().clone();
        let mut state = self.inner.0.lock().unwrap();
        if !state.ended {
            state.wakers.push(waker);
            let restless = state.restless > 0;
            state.restless = state.restless.saturating_sub(1);
            drop(state);
            if restless {
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        drop(state);
        work.held = None;
        Poll::Ready(Outcome {
            value: work.number,
            whose: if self.private {
                Whose::Leaders
            } else {
                Whose::All
            },
            keep: self.keep,
        })
    }

    fn is_flying_here(&self, _: Name) -> bool {
        false
    }

    fn lost(&self, how: Lost) -> u32 {
        match how {
            Lost::Panicked => PANICKED,
            Lost::ShutDown => SHUT,
        }
    }

    fn apart(&self) -> u32 {
        APART
    }
}

const LIMITS: Limits = Limits {
    max_joiners: usize::MAX,
    max_flights: usize::MAX,
    lasting: false,
    keeps: false,
};

fn ground() -> Here {
    with(LIMITS, false)
}

fn with(limits: Limits, private: bool) -> Here {
    Arc::new(Ground {
        space: Space::new(1, limits),
        inner: Inner::default(),
        live: AtomicUsize::new(0),
        made: AtomicUsize::new(0),
        polls: AtomicUsize::new(0),
        keep: None,
        private,
    })
}

impl Ground {
    fn work(self: &Here) -> Work {
        self.live.fetch_add(1, SeqCst);
        let number = self.made.fetch_add(1, SeqCst);
        Work {
            held: Some(Held(self.clone())),
            number: number as u32,
        }
    }

    /// The inner call is done: all works that wait are woken. Later ones end at once.
    fn end(&self) {
        let wakers = {
            let mut state = self.inner.0.lock().unwrap();
            state.ended = true;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes the work for nothing.
    fn wake(&self) {
        let wakers = std::mem::take(&mut self.inner.0.lock().unwrap().wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn assert_empty(&self) {
        let now = self.space.standing();
        assert_eq!((now.entries, now.running, now.waiting), (0, 0, 0));
        assert_eq!(self.live.load(SeqCst), 0);
    }
}

enum Caller {
    Ticket(Ticket<Here>),
    Seat(Seat<Here>),
    Refused,
}

fn call(ground: &Here) -> Caller {
    call_for(ground, 0)
}

fn call_for(ground: &Here, key: u8) -> Caller {
    // All keys have the same hash.
    let work = |_| Some(Box::pin(ground.work()));
    match ground.space.enter(ground, 0, key, None, work) {
        Entered::Led(id) => Caller::Ticket(Ticket::new(ground.clone(), Name { hash: 0, id })),
        Entered::Started(flight) => Caller::Seat(Seat::leading(flight)),
        Entered::Joined(flight) => Caller::Seat(Seat::joined(flight)),
        Entered::Full(_) | Entered::Shut => Caller::Refused,
    }
}

impl Caller {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<u32> {
        loop {
            match self {
                Caller::Ticket(ticket) => match ticket.poll(cx) {
                    Step::Pending => return Poll::Pending,
                    Step::Done(value, ()) => return Poll::Ready(value),
                    Step::Seated(seat) => *self = Caller::Seat(seat),
                },
                Caller::Seat(seat) => match seat.poll(cx, |value| *value) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Sat::Done(value)) => return Poll::Ready(value),
                    Poll::Ready(Sat::Reentrant) => panic!("it is not"),
                },
                Caller::Refused => return Poll::Ready(SHUT),
            }
        }
    }

    fn wait(mut self) -> u32 {
        until(|cx| self.poll(cx))
    }

    /// Polls once, with a waker that nobody hears.
    fn poll_once(&mut self) -> Poll<u32> {
        self.poll(&mut Context::from_waker(Waker::noop()))
    }
}

fn spawn<T: 'static>(
    ground: &Here,
    run: impl FnOnce(&Here) -> T + 'static,
) -> thread::JoinHandle<T> {
    let ground = ground.clone();
    thread::spawn(move || run(&ground))
}

#[test]
fn a_leader_and_a_joiner_are_both_told_whenever_the_work_ends() {
    crate::with::model(|| {
        let ground = ground();
        let leader = call(&ground);
        let joiner = spawn(&ground, |ground| call(ground).wait());
        let ender = spawn(&ground, |ground| ground.end());
        let led = leader.wait();
        let joined = joiner.join().unwrap();
        ender.join().unwrap();
        // One that came after it had landed led anew.
        let made = ground.made.load(SeqCst) as u32;
        assert_eq!(led, 0);
        assert_eq!(joined, made - 1);
        ground.assert_empty();
    });
}

#[test]
fn a_joiner_that_is_there_before_the_end_has_the_same_outcome() {
    crate::with::model(|| {
        let ground = ground();
        let leader = call(&ground);
        let joiner = call(&ground);
        let ender = spawn(&ground, |ground| ground.end());
        let other = thread::spawn(move || joiner.wait());
        assert_eq!(leader.wait(), 0);
        assert_eq!(other.join().unwrap(), 0);
        ender.join().unwrap();
        assert_eq!(ground.made.load(SeqCst), 1);
        ground.assert_empty();
    });
}

#[test]
fn a_leader_that_is_never_polled_again_holds_nobody_up() {
    crate::with::model(|| {
        let ground = ground();
        let mut leader = call(&ground);
        assert!(leader.poll_once().is_pending());
        let ender = spawn(&ground, |ground| ground.end());
        let joined = call(&ground).wait();
        ender.join().unwrap();
        assert_eq!(joined, 0);
        drop(leader);
        ground.assert_empty();
    });
}

#[test]
fn whichever_caller_drove_and_is_never_polled_again_holds_nobody_up() {
    crate::with::model(|| {
        let ground = ground();
        let leader = call(&ground);
        let mut driver = call(&ground);
        let joiner = call(&ground);
        assert!(driver.poll_once().is_pending());
        // It is woken for nothing; the driver drives again, or the joiner does.
        let waker = spawn(&ground, |ground| {
            ground.wake();
            ground.end();
        });
        let other = thread::spawn(move || {
            let _ = driver.poll_once();
            driver
        });
        assert_eq!(joiner.wait(), 0);
        waker.join().unwrap();
        drop(other.join().unwrap());
        drop(leader);
        assert_eq!(ground.made.load(SeqCst), 1);
        ground.assert_empty();
    });
}

#[test]
fn a_leader_that_leaves_leaves_the_flight_to_its_joiner() {
    crate::with::model(|| {
        let ground = ground();
        let mut leader = call(&ground);
        let joiner = call(&ground);
        let leaver = thread::spawn(move || {
            let _ = leader.poll_once();
            drop(leader);
        });
        let ender = spawn(&ground, |ground| ground.end());
        assert_eq!(joiner.wait(), 0);
        leaver.join().unwrap();
        ender.join().unwrap();
        assert_eq!(ground.made.load(SeqCst), 1);
        ground.assert_empty();
    });
}

#[test]
fn a_newcomer_never_joins_a_dying_flight() {
    crate::with::model(|| {
        let ground = ground();
        let mut leader = call(&ground);
        assert!(leader.poll_once().is_pending());
        let newcomer = spawn(&ground, |ground| {
            let caller = call(ground);
            ground.end();
            caller.wait()
        });
        drop(leader);
        let joined = newcomer.join().unwrap();
        assert_eq!(joined + 1, ground.made.load(SeqCst) as u32);
        ground.assert_empty();
    });
}

#[test]
fn the_last_of_three_to_leave_drops_the_work() {
    crate::with::model(|| {
        let ground = ground();
        let mut callers: Vec<_> = (0..3).map(|_| call(&ground)).collect();
        assert!(callers[1].poll_once().is_pending());
        let threads: Vec<_> = callers
            .drain(1..)
            .map(|caller| thread::spawn(move || drop(caller)))
            .collect();
        drop(callers);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!(ground.made.load(SeqCst), 1);
        ground.assert_empty();
    });
}

#[test]
fn a_wake_during_the_poll_is_kept() {
    crate::with::model(|| {
        let ground = ground();
        ground.inner.0.lock().unwrap().restless = 2;
        let leader = call(&ground);
        let joiner = call(&ground);
        let other = thread::spawn(move || joiner.wait());
        let ender = spawn(&ground, |ground| ground.end());
        assert_eq!(leader.wait(), 0);
        assert_eq!(other.join().unwrap(), 0);
        ender.join().unwrap();
        ground.assert_empty();
    });
}

#[test]
fn two_who_collect_at_once_both_get_the_value() {
    crate::with::model(|| {
        let ground = ground();
        ground.end();
        let mut leader = call(&ground);
        let joiners: Vec<_> = (0..2).map(|_| call(&ground)).collect();
        assert_eq!(leader.poll_once(), Poll::Ready(0));
        let others: Vec<_> = joiners
            .into_iter()
            .map(|joiner| thread::spawn(move || joiner.wait()))
            .collect();
        for other in others {
            assert_eq!(other.join().unwrap(), 0);
        }
        drop(leader);
        ground.assert_empty();
    });
}

#[test]
fn keys_of_the_same_hash_part_again() {
    crate::with::model(|| {
        let ground = ground();
        ground.end();
        let other = spawn(&ground, |ground| call_for(ground, 1).wait());
        let one = call_for(&ground, 0).wait();
        let two = other.join().unwrap();
        assert_ne!(one, two);
        assert_eq!(ground.made.load(SeqCst), 2);
        ground.assert_empty();
    });
}

#[test]
fn an_outcome_for_the_leader_alone_reaches_it_or_nobody() {
    crate::with::model(|| {
        let ground = with(LIMITS, true);
        let leader = call(&ground);
        let joiner = call(&ground);
        let stays = ground.clone();
        let ender = spawn(&ground, |ground| ground.end());
        let leader = thread::spawn(move || {
            let mut leader = leader;
            let told = leader.poll_once();
            drop(leader);
            drop(stays);
            told
        });
        assert_eq!(joiner.wait(), APART);
        let told = leader.join().unwrap();
        assert!(told == Poll::Ready(0) || told.is_pending(), "{told:?}");
        ender.join().unwrap();
        ground.assert_empty();
    });
}

#[test]
fn work_that_is_dropped_where_it_is_driven_as_by_a_panic_is_told_to_the_others() {
    crate::with::model(|| {
        let ground = ground();
        let leader = call(&ground);
        let Caller::Seat(mut seat) = call(&ground) else {
            panic!("it joins")
        };
        // (A real panic would poison loom's own locks.)
        let driver = thread::spawn(move || {
            let ours = matches!(seat.turn(Waker::noop()), Turn::Drive(_));
            if ours {
                seat.drive(|_, _, driving| drop(driving));
            }
            ours
        });
        let ender = spawn(&ground, |ground| ground.end());
        let told = leader.wait();
        let dropped = driver.join().unwrap();
        assert_eq!(told, if dropped { PANICKED } else { 0 });
        ender.join().unwrap();
        ground.assert_empty();
    });
}

#[test]
fn shutdown_meets_polls_joins_and_leaves() {
    crate::with::model(|| {
        let ground = ground();
        let mut leader = call(&ground);
        let shut = spawn(&ground, |ground| ground.space.shut(ground));
        let joiner = spawn(&ground, |ground| call(ground).wait());
        let told = match leader.poll_once() {
            Poll::Ready(told) => told,
            Poll::Pending => leader.wait(),
        };
        assert_eq!(told, SHUT);
        assert_eq!(joiner.join().unwrap(), SHUT);
        shut.join().unwrap();
        assert!(matches!(call(&ground), Caller::Refused));
        ground.assert_empty();
    });
}

#[test]
fn shutdown_meets_the_end_of_the_work() {
    crate::with::model(|| {
        let ground = ground();
        let leader = call(&ground);
        let joiner = call(&ground);
        let shut = spawn(&ground, |ground| ground.space.shut(ground));
        let other = thread::spawn(move || joiner.wait());
        ground.end();
        let mine = leader.wait();
        assert_eq!(mine, other.join().unwrap());
        assert!([0, SHUT].contains(&mine), "{mine}");
        shut.join().unwrap();
        ground.assert_empty();
    });
}

#[test]
fn one_who_has_waited_too_long_leads_another_or_finds_it_landed() {
    crate::with::model(|| {
        let ground = ground();
        let mut leader = call(&ground);
        assert!(leader.poll_once().is_pending());
        let impatient = spawn(&ground, |ground| {
            let Caller::Seat(seat) = call(ground) else {
                return None;
            };
            let mut key = Some(0);
            let work = || Some(Box::pin(ground.work()));
            let flight = seat.flight().clone();
            match ground.space.replace(ground, &flight, &mut key, work) {
                Replaced::Led(new) | Replaced::Joined(new) => {
                    seat.depart(Departure::Moved);
                    Some(Caller::Seat(new).wait())
                }
                Replaced::Landed => Some(Caller::Seat(seat).wait()),
                Replaced::Closed | Replaced::Full => panic!("it is neither"),
            }
        });
        let ender = spawn(&ground, |ground| ground.end());
        assert_eq!(leader.wait(), 0);
        if let Some(told) = impatient.join().unwrap() {
            assert_eq!(told + 1, ground.made.load(SeqCst) as u32);
        }
        ender.join().unwrap();
        ground.assert_empty();
    });
}

#[test]
fn a_task_that_drives_tells_all_whether_it_ends_or_vanishes() {
    crate::with::model(|| {
        let limits = Limits {
            lasting: true,
            ..LIMITS
        };
        let ground = with(limits, false);
        let Entered::Started(flight) = ground.space.enter(&ground, 0, 0, None, |_| None) else {
            panic!("it is the first")
        };
        let joiner = call(&ground);
        let leader = Caller::Seat(Seat::leading(flight.clone()));
        // The flight is the task's, which lands it: the callers only wait.
        let task = spawn(&ground, move |ground| {
            let driving = Driving::by_task(ground, &flight);
            let outcome = Outcome {
                value: 5,
                whose: Whose::All,
                keep: None,
            };
            driving.land_shared(&flight, outcome);
        });
        let other = thread::spawn(move || joiner.wait());
        drop(leader);
        assert_eq!(other.join().unwrap(), 5);
        task.join().unwrap();
        ground.live.store(0, SeqCst);
        ground.assert_empty();
    });
}

//! The usage word: claims against evictors, wishes against releases, drains and yields.

use std::sync::Weak;

use loom::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
};

use crate::{
    clock::Recency,
    notices::Watch,
    usage::{Claim, Closed, Eviction, Look, Refused, Usage},
    with::{Arc, Still, until},
};

fn born() -> Arc<Usage> {
    Usage::new(Arc::new(Still))
}

/// An instance that was used once, and is idle.
fn idle() -> Arc<Usage> {
    let usage = born();
    drop(usage.claim().expect("open"));
    usage
}

/// An instance in use.
fn busy() -> (Arc<Usage>, Claim) {
    let usage = born();
    let claim = usage.claim().expect("open");
    (usage, claim)
}

#[derive(Default)]
struct Seen {
    fell_idle: AtomicUsize,
    closed: AtomicUsize,
}

impl Watch for Seen {
    fn fell_idle(&self, _key: u64) {
        self.fell_idle.fetch_add(1, SeqCst);
    }
    fn closed(&self, _key: u64) {
        self.closed.fetch_add(1, SeqCst);
    }
    fn pinned(&self, _key: u64) {}
}

fn watched(usage: &Arc<Usage>) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    let watch: Weak<dyn Watch> = {
        let seen: Arc<dyn Watch> = seen.clone();
        Arc::downgrade(&seen)
    };
    usage.watch(watch, 0);
    seen
}

/// E2, E3: whoever has a claim has an open instance until it ends the claim; a refused evictor leaves
/// it claimable; of the two exactly one prevails.
#[test]
fn a_claim_and_an_evictor_never_both_prevail() {
    crate::with::model(|| {
        let usage = idle();
        let evicted = Arc::new(AtomicBool::new(false));
        let caller = {
            let (usage, evicted) = (usage.clone(), evicted.clone());
            thread::spawn(move || match usage.claim() {
                Ok(claim) => {
                    assert!(!evicted.load(SeqCst));
                    assert!(!usage.look().is_closed());
                    assert!(!evicted.load(SeqCst));
                    drop(claim);
                    true
                }
                Err(refused) => {
                    assert_eq!(refused, Refused::Closed);
                    false
                }
            })
        };
        let look = usage.look();
        let closed = look.is_idle() && {
            let telling = usage.start_closing(look, Eviction::Room);
            evicted.store(telling.is_some(), SeqCst);
            telling.is_some()
        };
        let served = caller.join().unwrap();
        assert!(served || closed, "a refused call, and nobody closed it");
        assert_eq!(usage.look().is_closed(), closed);
        assert_eq!(usage.claim().is_ok(), !closed);
    });
}

/// E4: a use that began after the look refuses the close, though it is over by then.
#[test]
fn a_use_that_came_and_went_refuses_the_close() {
    crate::with::model(|| {
        let usage = idle();
        let looked = Arc::new(AtomicBool::new(false));
        let caller = {
            let (usage, looked) = (usage.clone(), looked.clone());
            thread::spawn(move || {
                let after_the_look = looked.load(SeqCst);
                let claim = usage.claim();
                let claimed = claim.is_ok();
                drop(claim);
                after_the_look && claimed
            })
        };
        let look = usage.look();
        looked.store(true, SeqCst);
        let closed = look.is_idle() && usage.start_closing(look, Eviction::Idle).is_some();
        let claimed_after_the_look = caller.join().unwrap();
        assert!(
            !(closed && claimed_after_the_look),
            "the decision was the past"
        );
    });
}

/// A wish for an instance to fall idle is never lost: either it is idle when one looks, or the release
/// tells. Exactly once.
#[test]
fn a_wish_is_answered_by_the_look_or_by_the_release() {
    crate::with::model(|| {
        let (usage, claim) = busy();
        let seen = watched(&usage);
        let caller = thread::spawn(move || drop(claim));
        let look = usage.want();
        caller.join().unwrap();
        let told = seen.fell_idle.load(SeqCst);
        assert_eq!(told, usize::from(look.count() > 0));
    });
}

/// The same with a second use that begins meanwhile, and one that nobody had begun yet.
#[test]
fn a_wish_survives_the_uses_that_begin_after_it() {
    crate::with::model(|| {
        let (usage, claim) = busy();
        let seen = watched(&usage);
        let first = thread::spawn(move || drop(claim));
        let second = {
            let usage = usage.clone();
            thread::spawn(move || drop(usage.claim()))
        };
        let look = usage.want();
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(usage.look().count(), 0);
        let told = seen.fell_idle.load(SeqCst);
        assert!(
            told > 0 || look.count() == 0,
            "it is idle and nobody was told"
        );
    });
    crate::with::model(|| {
        let usage = born();
        let seen = watched(&usage);
        let first = {
            let usage = usage.clone();
            thread::spawn(move || drop(usage.claim()))
        };
        let look = usage.want();
        first.join().unwrap();
        let used_before_the_wish = look.is_idle() && !look.is_born();
        assert_eq!(
            seen.fell_idle.load(SeqCst),
            usize::from(!used_before_the_wish)
        );
    });
}

/// Whoever waits for the drain is woken, whichever of the closing and the last release is last; what is
/// held until then is dropped, once.
#[test]
fn a_drain_is_seen_whoever_is_last() {
    struct Held(Arc<AtomicUsize>);
    impl Drop for Held {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    crate::with::model(|| {
        let (usage, claim) = busy();
        let dropped = Arc::new(AtomicUsize::new(0));
        let caller = thread::spawn(move || drop(claim));
        let owner = {
            let (usage, dropped) = (usage.clone(), dropped.clone());
            thread::spawn(move || {
                assert!(usage.close_now());
                usage.hold_until_drained(Box::new(Held(dropped)));
            })
        };
        let mut key = None;
        until(|cx| usage.poll_drained(&mut key, cx.waker()));
        assert!(usage.look().is_closed());
        caller.join().unwrap();
        owner.join().unwrap();
        assert_eq!(dropped.load(SeqCst), 1);
    });
}

/// The owner hears of an eviction, and so does everybody who watches.
#[test]
fn a_closing_is_told_once_to_all() {
    crate::with::model(|| {
        let usage = idle();
        let seen = watched(&usage);
        let evictors: Vec<_> = [Eviction::Room, Eviction::Idle]
            .into_iter()
            .map(|why| {
                let usage = usage.clone();
                thread::spawn(move || {
                    let look = usage.look();
                    look.is_idle() && usage.start_closing(look, why).is_some()
                })
            })
            .collect();
        let mut key = None;
        let closed = until(|cx| usage.poll_closed(&mut key, cx.waker()));
        let closers = evictors.into_iter();
        let closers: usize = closers.map(|it| usize::from(it.join().unwrap())).sum();
        assert_eq!(closers, 1);
        assert_eq!(seen.closed.load(SeqCst), 1);
        assert!(matches!(closed, Closed::Evicted(_)));
    });
}

/// While it yields new claims wait; then they get either a claim, after it reopened, or the refusal,
/// after it closed. Nobody waits for ever, and it closes only while nobody uses it.
#[test]
fn a_waiting_claim_is_decided_by_the_reopening_or_the_closing() {
    crate::with::model(|| {
        let (usage, claim) = busy();
        assert!(usage.start_yielding().is_yielding());
        let last = thread::spawn(move || drop(claim));
        let starter = {
            let usage = usage.clone();
            thread::spawn(move || drop(usage.stop_yielding()))
        };
        let mut key = None;
        let decided = until(|cx| usage.poll_claim(&mut key, cx.waker()));
        match decided {
            Ok(claim) => {
                assert!(!usage.look().is_closed());
                drop(claim);
                last.join().unwrap();
                starter.join().unwrap();
                assert!(!usage.look().is_closed(), "it had reopened");
            }
            Err(refused) => {
                assert_eq!(refused, Refused::Closed);
                assert!(usage.look().is_closed());
                last.join().unwrap();
                starter.join().unwrap();
            }
        }
        assert_eq!(usage.look().count(), 0);
    });
}

/// To yield and the end of the last use: either it closes with that end, or the one who asked finds it
/// idle and can close it himself.
#[test]
fn to_yield_is_not_lost_to_the_end_of_the_last_use() {
    crate::with::model(|| {
        let (usage, claim) = busy();
        let seen = watched(&usage);
        let last = thread::spawn(move || drop(claim));
        let look = usage.start_yielding();
        last.join().unwrap();
        assert_eq!(usage.look().is_closed(), look.is_yielding());
        assert_eq!(seen.closed.load(SeqCst), usize::from(look.is_yielding()));
        assert!(look.is_yielding() || look.is_idle());
    });
}

/// A pinned one is not closed by a decision made before it was pinned.
#[test]
fn pinned_prevails_over_an_older_decision() {
    crate::with::model(|| {
        let usage = idle();
        let look = usage.look();
        let owner = {
            let usage = usage.clone();
            thread::spawn(move || {
                usage.set_pinned(true);
                usage.look().is_closed()
            })
        };
        let closed = usage.start_closing(look, Eviction::Room).is_some();
        let closed_by_then = owner.join().unwrap();
        assert_eq!(usage.look().is_closed(), closed);
        assert!(usage.look().is_pinned());
        assert_eq!(closed_by_then, closed, "nobody closes it once it is pinned");
    });
}

/// Uses in progress hear of the cut.
#[test]
fn a_cut_is_heard() {
    crate::with::model(|| {
        let (usage, claim) = busy();
        let owner = {
            let usage = usage.clone();
            thread::spawn(move || usage.cut())
        };
        let mut key = None;
        until(|cx| usage.poll_cut(&mut key, cx.waker()));
        usage.forget_cut(&mut key);
        drop(claim);
        owner.join().unwrap();
    });
}

/// What is held for the instance's end goes once: after the last use, and after the last lease that was
/// refused and still holds out.
#[test]
fn what_is_held_for_the_end_waits_for_the_last_who_holds_out() {
    struct Held(Arc<AtomicUsize>);
    impl Drop for Held {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    crate::with::model(|| {
        let (usage, claim) = busy();
        let holdout = usage.hold_out();
        let gone = Arc::new(AtomicUsize::new(0));
        usage.close_now();
        let ends = thread::spawn(move || drop(claim));
        let (own, held) = (usage.clone(), Held(gone.clone()));
        let leaves = thread::spawn(move || own.hold_until_drained(Box::new(held)));
        assert_eq!(gone.load(SeqCst), 0);
        drop(holdout);
        ends.join().unwrap();
        leaves.join().unwrap();
        assert_eq!(gone.load(SeqCst), 1);
    });
}

/// The time at which the last use ended is there for whoever sees the instance idle, also if it learns of that by
/// an exchange that failed.
#[test]
fn whoever_sees_it_idle_sees_since_when() {
    /// Births are at 1, uses end at 2.
    struct Two;
    impl Recency for Two {
        fn now(&self) -> u64 {
            2
        }
        fn checked(&self) -> u64 {
            1
        }
    }
    let look_by = |look: fn(&Usage) -> Look| {
        crate::with::model(move || {
            let usage = Usage::new(Arc::new(Two));
            let claim = usage.claim().expect("open");
            let caller = thread::spawn(move || drop(claim));
            if look(&usage).is_idle() {
                assert_eq!(usage.ended(), 2);
            }
            caller.join().unwrap();
            assert_eq!(usage.ended(), 2);
        });
    };
    look_by(Usage::look);
    look_by(Usage::want);
    look_by(Usage::start_yielding);
}

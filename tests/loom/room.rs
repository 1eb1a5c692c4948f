//! The room: hand-over against cancelling, the deadline, and the ends of uses.

use loom::thread;

use super::{
    room::{Asked, Permit, Place, Room},
    state::Ask,
};
use crate::{
    error::ErrorKind,
    usage::Usage,
    with::{Arc, Still, until},
};

fn room(limit: u64) -> Arc<Room> {
    Room::new(limit, Arc::new(Still))
}

fn one() -> Ask {
    Ask {
        weight: 1,
        ..Ask::default()
    }
}

fn granted(room: &Arc<Room>) -> Permit {
    match room.ask(one()) {
        Asked::Granted(permit) => permit,
        _ => panic!("there is room"),
    }
}

fn waiting(room: &Arc<Room>) -> Place {
    match room.ask(one()) {
        Asked::Waiting(place) => place,
        _ => panic!("there is no room"),
    }
}

fn admitted(mut place: Place) -> Permit {
    until(|cx| place.poll(cx.waker())).expect("no deadline")
}

/// A running instance and its permit, in the hands of its owner.
fn instance(room: &Arc<Room>) -> (Arc<Usage>, Permit) {
    let permit = granted(room);
    permit.seat().made();
    let usage = Usage::new(Arc::new(Still));
    permit.seat().count(&usage);
    (usage, permit)
}

/// What every owner does: when it is closed, and drained, the instance goes.
fn own(usage: Arc<Usage>, permit: Permit) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut key = None;
        until(|cx| usage.poll_closed(&mut key, cx.waker()));
        permit.seat().leaving();
        assert_eq!(
            usage.look().count(),
            0,
            "a policy closed it while it was in use"
        );
        drop(permit);
    })
}

/// C5, C8: the room that comes back while the first in line leaves reaches the second, once.
#[test]
fn a_hand_over_and_a_cancel() {
    crate::with::model(|| {
        let room = room(1);
        let permit = granted(&room);
        let (first, second) = (waiting(&room), waiting(&room));
        let holder = thread::spawn(move || drop(permit));
        let leaver = thread::spawn(move || drop(first));
        let permit = admitted(second);
        holder.join().unwrap();
        leaver.join().unwrap();
        assert_eq!(room.occupancy().used, 1);
        drop(permit);
        let after = room.occupancy();
        assert_eq!((after.used, after.waiting), (0, 0));
    });
}

/// W2: at the deadline it is either refused or admitted, and never both.
#[test]
fn a_hand_over_and_a_deadline() {
    crate::with::model(|| {
        let room = room(1);
        let permit = granted(&room);
        let mut place = waiting(&room);
        let holder = thread::spawn(move || drop(permit));
        let answer = place.give_up();
        drop(place);
        holder.join().unwrap();
        match answer {
            Ok(permit) => {
                assert_eq!(room.occupancy().used, 1);
                drop(permit);
            }
            Err(error) => assert!(matches!(error.kind(), ErrorKind::NoRoom(_))),
        }
        let after = room.occupancy();
        assert_eq!((after.used, after.waiting), (0, 0));
    });
}

/// Two who leave at once, and the room that comes back: nothing stays behind.
#[test]
fn a_hand_over_and_everybody_leaves() {
    crate::with::model(|| {
        let room = room(1);
        let permit = granted(&room);
        let (first, mut second) = (waiting(&room), waiting(&room));
        let holder = thread::spawn(move || drop(permit));
        let leaver = thread::spawn(move || drop(first));
        let answer = second.give_up();
        drop(second);
        holder.join().unwrap();
        leaver.join().unwrap();
        drop(answer);
        let after = room.occupancy();
        assert_eq!((after.used, after.waiting), (0, 0));
    });
}

/// One who asks while the last use of the only instance ends: it is closed for the one who asks,
/// whoever is first, and the room is handed over.
#[test]
fn the_end_of_a_use_and_one_who_asks() {
    crate::with::model(|| {
        let room = room(1);
        let (usage, permit) = instance(&room);
        let claim = usage.claim().expect("open");
        let owner = own(usage.clone(), permit);
        let caller = thread::spawn(move || drop(claim));
        let permit = admitted(waiting(&room));
        caller.join().unwrap();
        owner.join().unwrap();
        assert!(usage.look().is_closed());
        assert_eq!(room.occupancy().used, 1);
        drop(permit);
        assert_eq!(room.occupancy().used, 0);
    });
}

/// One who asks, and a new call to the idle instance: the call is served or refused, the starter gets
/// the room in the end, and nothing is closed in use.
#[test]
fn a_new_use_and_one_who_asks() {
    crate::with::model(|| {
        let room = room(1);
        let (usage, permit) = instance(&room);
        drop(usage.claim().expect("open"));
        let owner = own(usage.clone(), permit);
        let caller = {
            let usage = usage.clone();
            thread::spawn(move || {
                if let Ok(claim) = usage.claim() {
                    assert!(!usage.look().is_closed());
                    drop(claim);
                }
            })
        };
        let permit = admitted(waiting(&room));
        caller.join().unwrap();
        owner.join().unwrap();
        drop(permit);
        assert_eq!(room.occupancy().used, 0);
    });
}

/// An instance that is just being counted, and one who asks: born it is no victim, used it is one.
#[test]
fn a_new_instance_and_one_who_asks() {
    crate::with::model(|| {
        let room = room(1);
        let permit = granted(&room);
        permit.seat().made();
        let place = waiting(&room);
        let usage = Usage::new(Arc::new(Still));
        let owner = {
            let usage = usage.clone();
            thread::spawn(move || {
                permit.seat().count(&usage);
                // Published with a claim of its own.
                let own = usage.claim().expect("a born instance is no victim");
                drop(own);
                let mut key = None;
                until(|cx| usage.poll_closed(&mut key, cx.waker()));
                drop(permit);
            })
        };
        let permit = admitted(place);
        owner.join().unwrap();
        drop(permit);
        assert_eq!(room.occupancy().used, 0);
    });
}

/// To yield, the end of the last use, and the starter that leaves: whatever is first, a call that
/// waits is decided.
#[test]
fn to_yield_and_a_starter_that_leaves() {
    crate::with::model(|| {
        let room = room(1);
        let (usage, permit) = instance(&room);
        let claim = usage.claim().expect("open");
        let place = waiting(&room);
        place.lose_patience();
        let last = thread::spawn(move || drop(claim));
        let leaver = thread::spawn(move || drop(place));
        let mut key = None;
        let waited = until(|cx| usage.poll_claim(&mut key, cx.waker()));
        if waited.is_ok() {
            assert!(!usage.look().is_closed());
        }
        drop(waited);
        last.join().unwrap();
        leaver.join().unwrap();
        let after = room.occupancy();
        assert_eq!(after.waiting, 0);
        if !usage.look().is_closed() {
            assert!(usage.claim().is_ok(), "it is open to all again");
        }
        drop(permit);
    });
}

/// Over the limit, the end of the last use retires; whichever of the two is first.
#[test]
fn the_end_of_a_use_and_a_lower_limit() {
    crate::with::model(|| {
        let room = room(1);
        let (usage, permit) = instance(&room);
        let claim = usage.claim().expect("open");
        let owner = own(usage.clone(), permit);
        let caller = thread::spawn(move || drop(claim));
        room.set_limit(0);
        caller.join().unwrap();
        owner.join().unwrap();
        assert!(usage.look().is_closed());
        assert_eq!(room.occupancy().used, 0);
    });
}

/// Over the limit, and a new use that begins just then: it goes when that use ends.
#[test]
fn a_new_use_and_a_lower_limit() {
    crate::with::model(|| {
        let room = room(1);
        let (usage, permit) = instance(&room);
        drop(usage.claim().expect("open"));
        let owner = own(usage.clone(), permit);
        let caller = {
            let usage = usage.clone();
            thread::spawn(move || drop(usage.claim()))
        };
        room.set_limit(0);
        caller.join().unwrap();
        owner.join().unwrap();
        assert_eq!(room.occupancy().used, 0);
    });
}

/// The impatient one leaves while what yields to it ends its last use: the one behind gets the room.
#[test]
fn a_starter_that_leaves_and_the_one_behind_it() {
    crate::with::model(|| {
        let room = room(1);
        let (usage, permit) = instance(&room);
        let claim = usage.claim().expect("open");
        let owner = own(usage, permit);
        let first = waiting(&room);
        first.lose_patience();
        let second = waiting(&room);
        let last = thread::spawn(move || drop(claim));
        let leaver = thread::spawn(move || drop(first));
        drop(admitted(second));
        last.join().unwrap();
        leaver.join().unwrap();
        owner.join().unwrap();
        assert_eq!(room.occupancy().used, 0);
    });
}

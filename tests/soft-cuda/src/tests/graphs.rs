//! Graphs made node by node.

use super::*;
use crate::code::Code;
use crate::graph::{self, Edge, Job};
use crate::work::{Fill, Work};

fn fill(address: u64, value: u32) -> Job {
    Job::Work(Work::Fill(Fill { address, pitch: 0, value, element: 1, width: 64, height: 1 }))
}

fn after(nodes: &[Id]) -> Vec<Edge> {
    nodes.iter().map(|&from| Edge { from, programmatic: false }).collect()
}

fn run(d: &mut Held, graph: Id, stream: Id) {
    let exec = graph::instantiate(d, graph, 0).expect("executable");
    graph::launch(d, exec, stream).expect("submitted");
    stream::synchronize(d, stream).expect("healthy");
    graph::destroy_exec(d, exec).expect("alive");
}

#[test]
fn branches_are_unordered_and_edges_order_them() {
    let mut seen = Vec::new();
    for order in orders() {
        let (driver, _) = driver(order);
        let mut d = lock(driver);
        let (s, x) = (free_stream(&mut d), filled(&mut d, 64, 0));
        let graph = graph::create(&mut d, None);
        let one = graph::add(&mut d, graph, fill(x, 1), vec![]).expect("added");
        let two = graph::add(&mut d, graph, fill(x, 2), vec![]).expect("added");
        run(&mut d, graph, s);
        seen.push(peek(&d, x));
        graph::connect(&mut d, graph, &[(two, one, false)]).expect("no cycle");
        assert_eq!(graph::connect(&mut d, graph, &[(one, two, false)]), Err(Code::INVALID_VALUE), "a cycle");
        run(&mut d, graph, s);
        assert_eq!(peek(&d, x), 1, "{order:?}");
        graph::disconnect(&mut d, graph, &[(two, one)]).expect("an edge");
        assert_eq!(graph::disconnect(&mut d, graph, &[(two, one)]), Err(Code::INVALID_VALUE));
    }
    assert!(seen.contains(&1) && seen.contains(&2), "{seen:?}");
}

#[test]
fn children_run_in_their_place_and_are_copies() {
    for order in orders() {
        let (driver, _) = driver(order);
        let mut d = lock(driver);
        let (s, x) = (free_stream(&mut d), filled(&mut d, 64, 0));
        let child = graph::create(&mut d, None);
        let inner = graph::add(&mut d, child, fill(x, 5), vec![]).expect("added");
        let graph = graph::create(&mut d, None);
        let first = graph::add(&mut d, graph, fill(x, 1), vec![]).expect("added");
        let middle = graph::add_child(&mut d, graph, child, after(&[first])).expect("added");
        graph::node_mut(&mut d, inner).expect("alive").job = fill(x, 9);
        run(&mut d, graph, s);
        assert_eq!(peek(&d, x), 5, "{order:?}");
        graph::add(&mut d, graph, fill(x, 6), after(&[middle])).expect("added");
        let copy = graph::clone(&mut d, graph).expect("alive");
        graph::destroy(&mut d, graph).expect("alive");
        assert_eq!(graph::node(&d, first).err(), Some(Code::INVALID_VALUE));
        run(&mut d, copy, s);
        assert_eq!(peek(&d, x), 6, "{order:?}");
    }
}

#[test]
fn an_executable_takes_new_parameters_of_the_same_shape_only() {
    let (driver, _) = driver(Order::Latest);
    let mut d = lock(driver);
    let (s, x) = (free_stream(&mut d), filled(&mut d, 64, 0));
    let graph = graph::create(&mut d, None);
    let node = graph::add(&mut d, graph, fill(x, 1), vec![]).expect("added");
    let exec = graph::instantiate(&mut d, graph, 0).expect("executable");
    let launch = |d: &mut Held| {
        graph::launch(d, exec, s).expect("submitted");
        stream::synchronize(d, s).expect("healthy");
        peek(d, x)
    };
    graph::set_job(&mut d, exec, node, fill(x, 2)).expect("the same kind");
    assert_eq!(launch(&mut d), 2);
    assert_eq!(graph::set_job(&mut d, exec, node, Work::Nothing.into()), Err(Code::INVALID_VALUE));
    let same = graph::create(&mut d, None);
    let first = graph::add(&mut d, same, fill(x, 3), vec![]).expect("added");
    assert_eq!(graph::update(&mut d, exec, same), Ok(Ok(())));
    assert_eq!(launch(&mut d), 3);
    graph::add(&mut d, same, fill(x, 4), after(&[first])).expect("added");
    assert_eq!(graph::update(&mut d, exec, same).expect("answered").unwrap_err().result, 2);
    let kinds = graph::create(&mut d, None);
    graph::add(&mut d, kinds, Work::Nothing.into(), vec![]).expect("added");
    assert_eq!(graph::update(&mut d, exec, kinds).expect("answered").unwrap_err().result, 3);
    assert_eq!(launch(&mut d), 3);
    assert_eq!(graph::set_enabled(&mut d, exec, node, Some(false)), Ok(false));
    set(&mut d, x, 8, 64, s).expect("submitted");
    assert_eq!(launch(&mut d), 8);
}

#[test]
fn launches_of_one_executable_do_not_overlap() {
    for order in orders() {
        let (driver, _) = driver(order);
        let mut d = lock(driver);
        let (a, b) = (free_stream(&mut d), free_stream(&mut d));
        let (x, y) = (filled(&mut d, 64, 1), filled(&mut d, 64, 0));
        let graph = graph::create(&mut d, None);
        let copy = |to: u64, from: u64| {
            let plane = |a| crate::work::Plane { place: crate::work::Place::Address(a), pitch: 0, slice: 0 };
            let transfer =
                crate::work::Transfer { from: plane(from), to: plane(to), width: 32, height: 1, depth: 1 };
            Job::Work(Work::Copy(Box::new(transfer)))
        };
        // Swaps x and y by way of the upper halves.
        let first = graph::add(&mut d, graph, copy(x + 32, x), vec![]).expect("added");
        let second = graph::add(&mut d, graph, copy(x, y), after(&[first])).expect("added");
        graph::add(&mut d, graph, copy(y, x + 32), after(&[second])).expect("added");
        let exec = graph::instantiate(&mut d, graph, 0).expect("executable");
        graph::launch(&mut d, exec, a).expect("submitted");
        graph::launch(&mut d, exec, b).expect("submitted");
        stream::synchronize_context(&mut d).expect("healthy");
        assert_eq!((peek(&d, x), peek(&d, y)), (1, 0), "{order:?}");
    }
}

//! Where requests go, and that an app's name that hangs does not affect other apps. Tests with real processes cover the answers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::*;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    sync::Mutex,
};

#[test]
fn a_key_is_put_behind_the_origins_path_and_a_port_is_found() {
    for (origin, authority, host, path) in [
        ("http://o/", "o:80", "o", "/k/x"),
        ("http://o:8080/a/b/", "o:8080", "o:8080", "/a/b/k/x"),
        ("http://[::1]/", "[::1]:80", "[::1]", "/k/x"),
        ("http://[::1]:81/", "[::1]:81", "[::1]:81", "/k/x"),
    ] {
        let expected = (authority.to_owned(), host.to_owned(), path.to_owned());
        assert_eq!(target(origin, b"k/x"), expected, "{origin}");
    }
}

/// An origin with the same object under every path.
fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // One read gets the whole request, or a part of it.
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    address
}

fn fetch(app: &str, origin: &str, timeout: Duration) -> FetchRequest {
    FetchRequest {
        app: app.into(),
        life: 1,
        key: Bytes::from_static(b"k"),
        origin: origin.into(),
        validators: Validators::default(),
        bytes_max: 100,
        timeout,
    }
}

#[test]
fn a_name_that_hangs_takes_one_thread_of_its_app_and_no_other_apps_time() {
    let (address, long, short) = (serve(), Duration::from_secs(60), Duration::from_millis(1));
    let (release, hangs) = channel::<()>();
    let (asking, asked) = channel();
    let hangs = Mutex::new((hangs, asking));
    let resolve: Resolve = Arc::new(move |authority| {
        if authority.starts_with("hangs") {
            let (hangs, asking) = &*hangs.lock().unwrap();
            let _ = asking.send(());
            // Hangs until the test has seen enough.
            let _ = hangs.recv();
        }
        Ok(vec![address])
    });
    let mut poll = mio::Poll::new().unwrap();
    let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
    let origins = Origins::start_with(waker, resolve).unwrap();
    let mut next = || loop {
        if let Some(fetched) = origins.next() {
            break fetched;
        }
        poll.poll(&mut mio::Events::with_capacity(1), Some(long)).unwrap();
    };
    for _ in 0..4 {
        origins.fetch(fetch("bad", "http://hangs/", short));
        let fetched = next();
        assert!(fetched.answer == OriginAnswer::Away && fetched.why.unwrap().contains("cache.timeout"));
    }
    asked.recv().unwrap();
    origins.fetch(fetch("good", "http://works/", long));
    assert!(matches!(next().answer, OriginAnswer::Object(bytes, ..) if *bytes == *b"ok"));
    // The app's new name has to wait for the thread, and the error says so.
    origins.fetch(fetch("bad", "http://other/", long));
    let fetched = next();
    assert!(fetched.answer == OriginAnswer::Away && fetched.why.unwrap().contains("former origin"));
    assert!(asked.try_recv().is_err(), "it is looked up once");
    // When the lookup succeeds late, the waiting fetch gets the result, and the next fetch looks the name up again.
    origins.fetch(fetch("bad", "http://hangs/", long));
    drop(release);
    assert!(matches!(next().answer, OriginAnswer::Object(..)));
    origins.fetch(fetch("bad", "http://other/", long));
    assert!(matches!(next().answer, OriginAnswer::Object(..)));
}

#[test]
fn there_is_an_end_to_how_many_names_hang() {
    let (release, hangs) = channel::<()>();
    let hangs = Mutex::new(hangs);
    let resolve: Resolve = Arc::new(move |_| {
        let _ = hangs.lock().unwrap().recv();
        Ok(Vec::new())
    });
    let mut poll = mio::Poll::new().unwrap();
    let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
    let origins = Origins::start_with(waker, resolve).unwrap();
    for app in 0..=LOOKUPS_MAX {
        origins.fetch(fetch(&app.to_string(), "http://hangs/", Duration::from_secs(60)));
    }
    let fetched = loop {
        if let Some(fetched) = origins.next() {
            break fetched;
        }
        poll.poll(&mut mio::Events::with_capacity(1), Some(Duration::from_secs(60))).unwrap();
    };
    assert!(fetched.answer == OriginAnswer::Away && fetched.why.unwrap().contains("other apps"));
    drop(release);
}

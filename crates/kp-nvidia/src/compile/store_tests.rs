//! Faults, injected one by one: nothing of them may be loaded, nothing may fail.

use super::*;
use crate::compile::tests::Scratch;
use std::{
    env,
    process::{self, Command, Stdio},
};

fn key(byte: u8) -> Key {
    Key([byte; 32])
}

fn compiled(byte: u8, bytes: usize) -> Compiled {
    Compiled { cubin: vec![byte; bytes], log: format!("log of {byte}\n") }
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_kept_is_found() {
    let scratch = Scratch::new("store-kept");
    let folder = scratch.path().join("a/b/cubin");
    let store = Store::open(&folder).expect("the folder is ours");
    assert_eq!(store.read(&key(1)), None);
    for (name, value) in [(1, compiled(1, 3000)), (2, compiled(2, 0)), (1, compiled(3, 10))] {
        store.write(&key(name), &value);
        assert_eq!(store.read(&key(name)), Some(value));
    }
    assert_eq!(files(&folder), [key(1).to_string(), key(2).to_string()], "no temporary files stay");
    let again = Store::open(&folder).expect("it is there");
    assert_eq!(again.read(&key(1)), Some(compiled(3, 10)));
}

#[cfg(unix)]
#[test]
fn the_folder_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("store-private");
    let folder = scratch.path().join("cubin");
    let store = Store::open(&folder).expect("the folder is ours");
    store.write(&key(1), &compiled(1, 10));
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&store.path(&key(1)))), (0o700, 0o600));
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let warned = warnings(|| assert!(Store::open(&folder).is_none(), "anybody could have put anything there"));
    assert!(warned[0].contains("its mode is 777, expected 700"), "{warned:?}");
}

/// Every prefix of an entry, every bit of it flipped, bytes added, another entry's bytes, another file's, nothing.
#[test]
fn damage_counts_as_absence_and_heals() {
    let scratch = Scratch::new("store-damage");
    let store = Store::open(&scratch.path().join("cubin")).expect("the folder is ours");
    let value = compiled(7, 40);
    store.write(&key(7), &value);
    let good = fs::read(store.path(&key(7))).expect("it was written");
    let mut damaged: Vec<Vec<u8>> = (0..good.len()).map(|length| good[..length].to_vec()).collect();
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        damaged.push(bytes);
    }
    damaged.push([&good[..], b"x"].concat());
    damaged.push(encode(&key(8), &value));
    damaged.push(
        b"\x7fELF something else entirely, long enough to hold a header of eighty bytes and a little more".to_vec(),
    );
    for bytes in damaged {
        fs::write(store.path(&key(7)), &bytes).expect("the folder is ours");
        assert_eq!(store.read(&key(7)), None, "{bytes:?}");
    }
    let warned = warnings(|| assert_eq!(store.read(&key(7)), None));
    assert!(warned[0].contains("a kept kernel is compiled again"), "{warned:?}");
    store.write(&key(7), &value);
    assert_eq!(store.read(&key(7)), Some(value.clone()));

    // Another kind of file in its place cannot be replaced by renaming; that too is no more than a warning.
    fs::remove_file(store.path(&key(7))).expect("it is there");
    fs::create_dir(store.path(&key(7))).expect("the folder is ours");
    let warned = warnings(|| {
        assert_eq!(store.read(&key(7)), None);
        store.write(&key(7), &value);
    });
    assert_eq!(warned.len(), 2, "{warned:?}");
    assert_eq!(files(&store.folder), [key(7).to_string()], "no temporary files stay");
}

#[test]
fn a_folder_that_cannot_be_made_is_said_once() {
    let scratch = Scratch::new("store-unmade");
    let file = scratch.path().join("file");
    fs::write(&file, "").expect("the folder is ours");
    let warned = warnings(|| assert!(Store::open(&file.join("cubin")).is_none()));
    assert_eq!(warned.len(), 1, "{warned:?}");
}

/// Root may write anywhere but in /sys, where nobody creates files.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_may_only_be_read_is_said_once() {
    let folder = Path::new("/sys/kernel");
    let store = Store { folder: folder.into(), most_bytes: MOST_BYTES, gave_up: AtomicBool::new(false) };
    let warned = warnings(|| {
        for _ in 0..3 {
            store.write(&key(1), &compiled(1, 10));
            assert_eq!(store.read(&key(1)), None);
        }
    });
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("compiled kernels are not kept from now on"), "{warned:?}");
}

#[test]
fn the_longest_unused_go_first() {
    let scratch = Scratch::new("store-bounded");
    let store = Store::bounded(&scratch.path().join("cubin"), 10_000).expect("the folder is ours");
    let now = SystemTime::now();
    let aged = |path: &Path, hours: u64| {
        let file = File::options().write(true).open(path).expect("it is there");
        file.set_modified(now - Duration::from_secs(3600 * hours)).expect("it is ours");
    };
    for i in 0..9 {
        store.write(&key(i), &compiled(i, 1000));
        aged(&store.path(&key(i)), 100 - u64::from(i));
    }
    assert!(store.read(&key(0)).is_some(), "9 entries of about 1100 bytes fit, and reading marks the oldest as used");
    for (name, hours) in [("left.1.0.tmp", 2), ("at-work.2.0.tmp", 0)] {
        fs::write(store.folder.join(name), "part").expect("the folder is ours");
        aged(&store.folder.join(name), hours);
    }
    store.write(&key(9), &compiled(9, 1000));
    let left: Vec<u8> = (0..10).filter(|&i| store.read(&key(i)).is_some()).collect();
    assert_eq!(left, [0, 5, 6, 7, 8, 9], "three quarters of the bound are left");
    assert!(files(&store.folder).iter().any(|name| name == "at-work.2.0.tmp"), "another process may be writing it");
    assert!(!files(&store.folder).iter().any(|name| name == "left.1.0.tmp"));
}

const FOLDER: &str = "KP_TEST_STORE";

/// Not a test by itself: the life of one process among those that the tests below start.
#[test]
fn one_of_several_processes() {
    let Some(folder) = env::var_os(FOLDER) else { return };
    let store = Store::open(Path::new(&folder)).expect("the folder is ours");
    let warned = warnings(|| {
        for round in 0..200 {
            for i in 0..4 {
                // Equal keys mean equal contents, whoever writes them.
                let value = compiled(i, 20_000);
                store.write(&key(i), &value);
                if let Some(found) = store.read(&key(i)) {
                    assert_eq!(found, value, "round {round}");
                } else {
                    println!("absent");
                }
            }
        }
    });
    println!("warned {}", warned.len());
}

fn process(folder: &Path, limited: bool) -> process::Child {
    let program = env::current_exe().expect("a test knows itself");
    let mut command = if limited {
        // No file may grow beyond 8 blocks: what a full disk does, in the middle of a write. Ignored signals stay ignored.
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]).arg(program);
        shell
    } else {
        Command::new(program)
    };
    let test = "compile::store::tests::one_of_several_processes";
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(FOLDER, folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("this program can be started")
}

fn said(child: process::Child) -> String {
    let output = child.wait_with_output().expect("it was started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn processes_share_a_folder() {
    let scratch = Scratch::new("store-processes");
    let folder = scratch.path().join("cubin");
    let children = [process(&folder, false), process(&folder, false), process(&folder, false)];
    for said in children.map(said) {
        assert!(said.contains("warned 0") && !said.contains("absent"), "{said}");
    }
    assert_eq!(files(&folder), (0..4).map(|i| key(i).to_string()).collect::<Vec<_>>());
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_said_once_and_leaves_nothing() {
    let scratch = Scratch::new("store-full");
    let folder = scratch.path().join("cubin");
    let said = said(process(&folder, true));
    assert!(said.contains("warned 1") && said.contains("absent"), "{said}");
    assert!(files(&folder).is_empty(), "half a file was left: {:?}", files(&folder));
}

/// The warnings that `act` logs on this thread.
fn warnings(act: impl FnOnce()) -> Vec<String> {
    use std::{
        fmt,
        sync::{Arc, Mutex},
    };
    use tracing::{Event, Level, Metadata, Subscriber, field, span};

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);
    struct Line(String);

    impl field::Visit for Line {
        fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
            self.0 += &format!("{field}: {value:?} ");
        }
    }
    impl Subscriber for Log {
        fn enabled(&self, about: &Metadata<'_>) -> bool {
            *about.level() == Level::WARN
        }
        fn event(&self, event: &Event<'_>) {
            let mut line = Line(String::new());
            event.record(&mut line);
            self.0.lock().expect("no panic while logging").push(line.0);
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), act);
    log.0.lock().expect("no panic while logging").clone()
}

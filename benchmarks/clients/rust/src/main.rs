//! client ADDRESS NAME=NUMBER...: calls the service with tonic. docs/real-clients.md says what the names
//! mean and what is printed. Messages are bytes here, so no .proto is needed.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{MetadataKey, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const CONNECTIONS: u64 = 2;
const KEYS: u64 = 500;
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;
    fn encoder(&mut self) -> Raw {
        Raw
    }
    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;
    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;
    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

fn message(key: u64) -> Bytes {
    let entry = [field(1, b"key"), field(2, key.to_string().as_bytes())].concat();
    [field(1, b"clients"), field(2, &field(1, &entry))].concat().into()
}

/// What the numbers of the command line say of the call with this number.
struct Kind {
    cancelled: bool,
    hurried: bool,
    oversized: bool,
    delay: Duration,
}

struct Options(HashMap<String, u64>);

impl Options {
    fn get(&self, name: &str) -> u64 {
        *self.0.get(name).unwrap_or(&0)
    }

    fn kind(&self, number: u64) -> Kind {
        let dice = number * 7919 % 1000;
        let hurried = self.get("cancel") + self.get("deadline");
        Kind {
            cancelled: dice < self.get("cancel"),
            hurried: dice >= self.get("cancel") && dice < hurried,
            oversized: dice >= hurried && dice < hurried + self.get("oversized"),
            delay: Duration::from_micros(100 + number * 104_729 % 3000),
        }
    }
}

/// What an error says, and those behind it.
fn why(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", why(source)),
        None => error.to_string(),
    }
}

async fn call(channel: Channel, options: &Options, number: u64) -> String {
    let kind = options.kind(number);
    let mut request = Request::new(message(number % KEYS));
    request.set_timeout(if kind.hurried { kind.delay } else { PATIENCE });
    let size = options.get("header_bytes") as usize;
    for place in 0..options.get("headers") {
        let said = if place % 2 == 0 { place } else { number };
        let name = MetadataKey::from_bytes(format!("x-extra-{place}").as_bytes()).unwrap();
        request.metadata_mut().insert(name, format!("{said:0size$}").parse().unwrap());
    }
    if kind.oversized {
        let large = MetadataValue::try_from("x".repeat(20_000)).unwrap();
        request.metadata_mut().insert("x-oversized", large);
    }
    let mut client = tonic::client::Grpc::new(channel);
    if let Err(error) = client.ready().await {
        return format!("failed: {error}");
    }
    let answer = client.unary(request, PathAndQuery::from_static(PATH), Raw);
    let answer = if kind.cancelled {
        match tokio::time::timeout(kind.delay, answer).await {
            Ok(answer) => answer,
            Err(_) => return "cancelled".into(),
        }
    } else {
        answer.await
    };
    match answer {
        Ok(answer) => {
            let text = String::from_utf8_lossy(answer.get_ref());
            if text.contains(&format!("<{}>", number % KEYS)) {
                "right".into()
            } else if text.contains('<') {
                "wrong".into()
            } else if kind.hurried {
                "late".into()
            } else {
                "policy".into()
            }
        }
        Err(_) if kind.oversized => "refused".into(),
        // tonic says CANCELLED as well if the time that it was given is over.
        Err(status) if kind.hurried && [Code::DeadlineExceeded, Code::Cancelled].contains(&status.code()) => {
            "late".into()
        }
        Err(status) => {
            let said = std::error::Error::source(&status).map(why);
            format!("failed: {:?} {}", status.code(), said.unwrap_or(status.message().into()))
        }
    }
}

// On one thread: on several hyper also fails calls that meet a GOAWAY on the other, and whose fault
// it was could not be told.
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().expect("an address");
    let options = Arc::new(Options(
        arguments
            .map(|each| {
                let (name, number) = each.split_once('=').expect("NAME=NUMBER");
                (name.to_string(), number.parse().expect("a number"))
            })
            .collect(),
    ));
    let over = Arc::new(AtomicBool::new(false));
    let heard = over.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        heard.store(true, Ordering::Relaxed);
    });
    let tally = Arc::new(Mutex::new(BTreeMap::<String, u64>::new()));
    let next = Arc::new(AtomicU64::new(0));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let channels: Vec<Channel> = (0..CONNECTIONS).map(|_| endpoint.connect_lazy()).collect();
    let mut callers = Vec::new();
    for place in 0..options.get("concurrency") {
        let channel = channels[(place % CONNECTIONS) as usize].clone();
        let (options, tally, next, over) = (options.clone(), tally.clone(), next.clone(), over.clone());
        callers.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= options.get("calls") {
                    break;
                }
                let outcome = call(channel.clone(), &options, number).await;
                *tally.lock().unwrap().entry(outcome).or_insert(0) += 1;
                tokio::time::sleep(Duration::from_millis(options.get("pause"))).await;
            }
        }));
    }
    for caller in callers {
        caller.await.expect("a caller that ends");
    }
    let plain = |text: &str| text.replace(['"', '\\', '\n', '\r', '\t'], " ");
    let tally = tally.lock().unwrap();
    let lines: Vec<String> = tally.iter().map(|(what, count)| format!("\"{}\": {count}", plain(what))).collect();
    println!("{{{}}}", lines.join(", "));
}

import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.okhttp.OkHttpChannelBuilder;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;

/**
 * Client netty|okhttp ADDRESS NAME=NUMBER...: calls the service with grpc-java. docs/real-clients.md
 * says what the names mean and what is printed. Messages are bytes here, so no .proto is needed.
 */
public final class Client {
  private static final int CONNECTIONS = 2;
  private static final int KEYS = 500;
  private static final int PATIENCE_SECONDS = 10;

  private static final MethodDescriptor.Marshaller<String> RAW =
      new MethodDescriptor.Marshaller<>() {
        @Override
        public InputStream stream(String message) {
          return new ByteArrayInputStream(message.getBytes(StandardCharsets.ISO_8859_1));
        }

        @Override
        public String parse(InputStream stream) {
          try {
            return new String(stream.readAllBytes(), StandardCharsets.ISO_8859_1);
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        }
      };
  private static final MethodDescriptor<String, String> METHOD =
      MethodDescriptor.newBuilder(RAW, RAW)
          .setType(MethodDescriptor.MethodType.UNARY)
          .setFullMethodName("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
          .build();

  private static final Map<String, Integer> options = new HashMap<>();
  private static final Map<String, AtomicLong> tally = new ConcurrentHashMap<>();
  private static final ScheduledExecutorService timer = Executors.newScheduledThreadPool(1);
  private static final AtomicBoolean over = new AtomicBoolean();

  private static int option(String name) {
    return options.getOrDefault(name, 0);
  }

  private static String field(int number, String bytes) {
    return "" + (char) (number << 3 | 2) + (char) bytes.length() + bytes;
  }

  private static String message(long key) {
    String entry = field(1, "key") + field(2, Long.toString(key));
    return field(1, "clients") + field(2, field(1, entry));
  }

  private static Metadata.Key<String> header(String name) {
    return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
  }

  private static String call(ManagedChannel channel, long number) {
    long dice = number * 7919 % 1000;
    int hurry = option("cancel") + option("deadline");
    boolean cancelled = dice < option("cancel");
    boolean hurried = !cancelled && dice < hurry;
    boolean oversized = dice >= hurry && dice < hurry + option("oversized");
    long delay = 100 + number * 104_729 % 3000;
    CallOptions how =
        hurried
            ? CallOptions.DEFAULT.withDeadlineAfter(delay, TimeUnit.MICROSECONDS)
            : CallOptions.DEFAULT.withDeadlineAfter(PATIENCE_SECONDS, TimeUnit.SECONDS);
    Metadata metadata = new Metadata();
    for (int place = 0; place < option("headers"); place++) {
      String value = Long.toString(place % 2 == 0 ? place : number);
      String padded = "0".repeat(Math.max(0, option("header_bytes") - value.length())) + value;
      metadata.put(header("x-extra-" + place), padded);
    }
    if (oversized) {
      metadata.put(header("x-oversized"), "x".repeat(20_000));
    }
    ClientCall<String, String> call =
        ClientInterceptors.intercept(
                channel, MetadataUtils.newAttachHeadersInterceptor(metadata))
            .newCall(METHOD, how);
    Future<String> asked = ClientCalls.futureUnaryCall(call, message(number % KEYS));
    if (cancelled) {
      timer.schedule(() -> call.cancel("asked for", null), delay, TimeUnit.MICROSECONDS);
    }
    try {
      String answer = asked.get();
      if (answer.contains("<" + number % KEYS + ">")) {
        return "right";
      }
      return answer.contains("<") ? "wrong" : hurried ? "late" : "policy";
    } catch (InterruptedException error) {
      return "failed: interrupted";
    } catch (ExecutionException error) {
      Status status = Status.fromThrowable(error);
      Status.Code code = status.getCode();
      if (cancelled && code == Status.Code.CANCELLED) {
        return "cancelled";
      }
      if (hurried && code == Status.Code.DEADLINE_EXCEEDED) {
        return "late";
      }
      return oversized ? "refused" : "failed: " + code + " " + status.getDescription();
    }
  }

  private static void callOn(ManagedChannel channel, AtomicLong next) {
    while (!over.get()) {
      long number = next.getAndIncrement();
      if (number >= option("calls")) {
        return;
      }
      String outcome = call(channel, number);
      tally.computeIfAbsent(outcome, what -> new AtomicLong()).incrementAndGet();
      try {
        Thread.sleep(option("pause"));
      } catch (InterruptedException error) {
        return;
      }
    }
  }

  private static String quoted(String text) {
    return '"' + text.replaceAll("[\"\\\\\\s]", " ") + '"';
  }

  public static void main(String[] arguments) throws Exception {
    for (int place = 2; place < arguments.length; place++) {
      String[] parts = arguments[place].split("=");
      options.put(parts[0], Integer.parseInt(parts[1]));
    }
    Thread listener =
        new Thread(
            () -> {
              try {
                System.in.readAllBytes();
              } catch (IOException error) {
                throw new UncheckedIOException(error);
              } finally {
                over.set(true);
              }
            });
    listener.setDaemon(true);
    listener.start();
    List<ManagedChannel> channels = new ArrayList<>();
    while (channels.size() < CONNECTIONS) {
      channels.add(
          arguments[0].equals("okhttp")
              ? OkHttpChannelBuilder.forTarget(arguments[1]).usePlaintext().build()
              : NettyChannelBuilder.forTarget(arguments[1]).usePlaintext().build());
    }
    AtomicLong next = new AtomicLong();
    List<Thread> callers = new ArrayList<>();
    for (int place = 0; place < option("concurrency"); place++) {
      ManagedChannel channel = channels.get(place % CONNECTIONS);
      callers.add(new Thread(() -> callOn(channel, next)));
    }
    callers.forEach(Thread::start);
    for (Thread caller : callers) {
      caller.join();
    }
    System.out.println(
        new TreeMap<>(tally)
            .entrySet().stream()
                .map(each -> quoted(each.getKey()) + ": " + each.getValue())
                .collect(Collectors.joining(", ", "{", "}")));
    System.exit(0);
  }
}

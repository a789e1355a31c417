// client ADDRESS NAME=NUMBER...: calls the service with grpc-go. docs/real-clients.md says what the
// names mean and what is printed. Messages are bytes here, so no .proto is needed.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	path        = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	connections = 2
	keys        = 500
	patience    = 10 * time.Second
)

type raw struct{}

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }
func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (raw) Name() string { return "proto" }

func field(number byte, bytes string) string {
	return string([]byte{number<<3 | 2, byte(len(bytes))}) + bytes
}

func message(key int) []byte {
	entry := field(1, "key") + field(2, strconv.Itoa(key))
	return []byte(field(1, "clients") + field(2, field(1, entry)))
}

type options map[string]int

// What the numbers of the command line say of the call with this number.
func (o options) kind(number int) (cancelled, hurried, oversized bool, delay time.Duration) {
	dice, hurry := number*7919%1000, o["cancel"]+o["deadline"]
	delay = time.Duration(100+number*104_729%3000) * time.Microsecond
	return dice < o["cancel"],
		dice >= o["cancel"] && dice < hurry,
		dice >= hurry && dice < hurry+o["oversized"],
		delay
}

func call(client *grpc.ClientConn, o options, number int) string {
	cancelled, hurried, oversized, delay := o.kind(number)
	wait := patience
	if hurried {
		wait = delay
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	for place := 0; place < o["headers"]; place++ {
		said := number
		if place%2 == 0 {
			said = place
		}
		value := fmt.Sprintf("%0*d", o["header_bytes"], said)
		ctx = metadata.AppendToOutgoingContext(ctx, fmt.Sprintf("x-extra-%d", place), value)
	}
	if oversized {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-oversized", strings.Repeat("x", 20_000))
	}
	if cancelled {
		timer := time.AfterFunc(delay, cancel)
		defer timer.Stop()
	}
	asked, answer := message(number%keys), []byte(nil)
	err := client.Invoke(ctx, path, &asked, &answer)
	code := status.Code(err)
	switch {
	case err == nil && strings.Contains(string(answer), fmt.Sprintf("<%d>", number%keys)):
		return "right"
	case err == nil && strings.Contains(string(answer), "<"):
		return "wrong"
	case err == nil && !hurried:
		return "policy"
	case err == nil, hurried && code == codes.DeadlineExceeded:
		return "late"
	case cancelled && code == codes.Canceled:
		return "cancelled"
	case oversized:
		return "refused"
	}
	return fmt.Sprintf("failed: %s %s", code, status.Convert(err).Message())
}

func main() {
	o := options{}
	for _, argument := range os.Args[2:] {
		name, number, _ := strings.Cut(argument, "=")
		o[name], _ = strconv.Atoi(number)
	}
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		over.Store(true)
	}()
	var clients []*grpc.ClientConn
	for len(clients) < connections {
		client, err := grpc.NewClient(
			os.Args[1],
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})),
		)
		if err != nil {
			panic(err)
		}
		clients = append(clients, client)
	}
	tally, mutex := map[string]int{}, sync.Mutex{}
	var next atomic.Int64
	var callers sync.WaitGroup
	for place := 0; place < o["concurrency"]; place++ {
		callers.Add(1)
		go func() {
			defer callers.Done()
			for !over.Load() {
				number := int(next.Add(1)) - 1
				if number >= o["calls"] {
					break
				}
				outcome := call(clients[place%connections], o, number)
				mutex.Lock()
				tally[outcome]++
				mutex.Unlock()
				time.Sleep(time.Duration(o["pause"]) * time.Millisecond)
			}
		}()
	}
	callers.Wait()
	_ = json.NewEncoder(os.Stdout).Encode(tally)
}

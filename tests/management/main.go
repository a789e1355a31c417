// A management server of rate limit rules, on the library with which Envoy Gateway serves them.
//
//	management -port PORT -node ID [-cert FILE -key FILE -ca FILE]
//
// Each line of standard input is a version and the files with its resources, serialized, separated
// by blanks. What clients say is on standard output: `open`, `ack VERSION`, `nack DETAIL`, `set
// VERSION` when a snapshot is there to be sent.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rules "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// transport is TLS 1.3 with client certificates, or nothing.
func transport(cert, key, ca string) []grpc.ServerOption {
	if cert == "" {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	must(err)
	pem, err := os.ReadFile(ca)
	must(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    pool,
		MinVersion:   tls.VersionTLS13,
	}))}
}

func snapshot(version string, files []string) *cache.Snapshot {
	var found []types.Resource
	for _, file := range files {
		data, err := os.ReadFile(file)
		must(err)
		config := &rules.RateLimitConfig{}
		must(proto.Unmarshal(data, config))
		found = append(found, config)
	}
	made, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{
		resource.RateLimitConfigType: found,
	})
	must(err)
	return made
}

func heard(_ int64, request *discovery.DiscoveryRequest) error {
	switch {
	case request.ErrorDetail != nil:
		fmt.Println("nack", strings.ReplaceAll(request.ErrorDetail.Message, "\n", "; "))
	case request.ResponseNonce == "":
		fmt.Println("open", request.Node.Id)
	default:
		fmt.Println("ack", request.VersionInfo)
	}
	return nil
}

func main() {
	port := flag.Int("port", 0, "")
	node := flag.String("node", "default", "")
	cert, key, ca := flag.String("cert", "", ""), flag.String("key", "", ""), flag.String("ca", "", "")
	flag.Parse()

	snapshots := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	served := server.NewServer(context.Background(), snapshots, server.CallbackFuncs{StreamRequestFunc: heard})
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	must(err)
	ours := grpc.NewServer(transport(*cert, *key, *ca)...)
	discovery.RegisterAggregatedDiscoveryServiceServer(ours, served)
	go func() { must(ours.Serve(listener)) }()
	fmt.Println("ready")

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		must(snapshots.SetSnapshot(context.Background(), *node, snapshot(words[0], words[1:])))
		fmt.Println("set", words[0])
	}
}

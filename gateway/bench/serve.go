//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"runtime"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/gateway/server"
)

// serve is what this program does as a process of its own: it plays the engines, a plain proxy, or the gateway with a
// profile of its work.
func serve(ctx context.Context, what string, args []string) error {
	switch what {
	case "engine":
		return serveEngine(ctx, args)
	case "httputil":
		return serveHTTPUtil(ctx, args[0], args[1:])
	case "profile":
		return serveProfiled(ctx, args)
	}
	return fmt.Errorf("nothing is called %q here", what)
}

func serveEngine(ctx context.Context, addrs []string) error {
	var listeners []net.Listener
	for _, addr := range addrs {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
	}
	(&engine{}).serve(ctx, listeners)
	return nil
}

func serveHTTPUtil(ctx context.Context, addr string, engines []string) error {
	turn := atomic.Uint32{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", engines[int(turn.Add(1))%len(engines)]
		},
		Transport:     &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true},
		FlushInterval: -1,
	}
	server := &http.Server{Addr: addr, Handler: proxy, ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// serveProfiled runs the gateway, and writes what its time and its memory went to once it ends.
func serveProfiled(ctx context.Context, args []string) error {
	addr, database, consul, spool, profile := args[0], args[1], args[2], args[3], args[4]
	cpu, err := os.Create(profile + ".cpu")
	if err != nil {
		return err
	}
	defer cpu.Close()
	heap, err := os.Create(profile + ".allocs")
	if err != nil {
		return err
	}
	defer heap.Close()
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return err
	}
	go heapAtMost(ctx, profile+".heap")
	err = server.Run(ctx, server.Config{Addr: addr, DatabaseURL: database, ConsulAddr: consul, Spool: spool, Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Warn})})
	pprof.StopCPUProfile()
	return errors.Join(err, pprof.Lookup("allocs").WriteTo(heap, 0))
}

// heapAtMost writes what holds memory whenever more goroutines run than ever before.
func heapAtMost(ctx context.Context, path string) {
	most := 100
	for ctx.Err() == nil {
		time.Sleep(500 * time.Millisecond)
		if n := runtime.NumGoroutine(); n > most {
			most = n
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			if f, err := os.Create(path); err == nil {
				pprof.Lookup("heap").WriteTo(f, 0) //nolint:errcheck // a profile that is missing is seen
				f.Close()
			}
			text := fmt.Sprintf("%d goroutines, heap %d KB in use, stacks %d KB, system %d KB\n", n, m.HeapAlloc>>10, m.StackInuse>>10, m.Sys>>10)
			os.WriteFile(path+".txt", []byte(text), 0o600) //nolint:errcheck // see above
		}
	}
}

//go:build linux

// Command bench measures the gateway beside plain proxies, all in front of the same engine and interleaved: CPU of a
// request and of an event of a stream, memory of open streams, and how soon an engine knows that its client left. It
// is run by `make gateway-bench`. What is measured here is the data plane; the choice of backends is measured by
// gateway/simulate.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are what the command line says.
type options struct {
	binary  string
	rounds  int
	only    string
	targets string
	profile string
	nice    int
	serve   string
}

func main() {
	var o options
	flag.StringVar(&o.binary, "binary", "bin/heteroflow", "`path` of the built program")
	flag.IntVar(&o.rounds, "rounds", 5, "`number` of rounds")
	flag.StringVar(&o.only, "only", "", "`rows` to run, with commas between; all when left out: "+strings.Join(rowNames(), ", "))
	flag.StringVar(&o.targets, "targets", "", "`targets` to measure, with commas between; all when left out")
	flag.StringVar(&o.profile, "profile", "", "`path` to which the gateway's profiles are written, as .cpu and .allocs; it then runs inside of this program")
	flag.IntVar(&o.nice, "nice", 0, "`priority` of all that is started, -20 to 19: below 0 where other work runs beside it")
	flag.StringVar(&o.serve, "serve", "", "what a process that this program starts does")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if o.serve != "" {
		err = serve(ctx, o.serve, flag.Args())
	} else {
		err = run(ctx, o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func rowNames() []string {
	var names []string
	for _, r := range rows {
		names = append(names, r.name)
	}
	return names
}

// picked are the names of a list with commas; all of those that there are when it is empty.
func picked(list string, all []string) ([]string, error) {
	if list == "" {
		return all, nil
	}
	names := strings.Split(list, ",")
	for _, name := range names {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("there is no %q: write some of %s", name, strings.Join(all, ", "))
		}
	}
	return names, nil
}

// run measures, and fails when an answer was not the one it should have been.
func run(ctx context.Context, o options, out io.Writer) error {
	only, err := picked(o.only, rowNames())
	if err != nil {
		return err
	}
	if runtime.NumCPU() < 2 {
		return errors.New("two cores are needed: one for what is measured, one for what measures it")
	}
	if err := pin(quietCore, o.nice); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gateway-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // PostgreSQL and nginx run as other users
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var engines []string
	for range 4 {
		addr, err := freeAddr()
		if err != nil {
			return err
		}
		engines = append(engines, addr)
	}
	engine, err := start(quietCore, []string{"GOMAXPROCS=1"}, self, append([]string{"-serve", "engine"}, engines...)...)
	if err != nil {
		return err
	}
	defer engine.stop()
	p, err := newProduct(ctx, dir, engines)
	if err != nil {
		return err
	}
	defer p.close()
	gateway := p.gateway(productName, o.binary, "own")
	if o.profile != "" {
		gateway = p.profiled(self, o.profile)
	}
	all := []*target{{name: "direct", addr: engines[0]}, gateway, p.gateway(standardName, o.binary, "net/http"), haproxy(engines), nginx(engines), reverse(self, engines)}
	b := &bench{key: p.key, results: results{}, dir: dir, engine: engine}
	targets, err := b.pick(all, o.targets)
	if err != nil {
		return err
	}
	head(out, o, p.engine)
	began := time.Now()
	if err := b.rounds(ctx, targets, only, o.rounds); err != nil {
		return err
	}
	metered := b.metered(ctx, p)
	var names []string
	for _, t := range targets {
		names = append(names, t.name)
	}
	b.results.write(out, names)
	fmt.Fprintf(out, "\n%d requests through %s, each with its row of usage: %t. It took %s.\n", b.sent, productName+" on either side", metered, time.Since(began).Round(time.Second))
	if len(b.problems) > 0 {
		return errors.New(strings.Join(b.problems, "\n"))
	}
	return nil
}

// pick leaves out targets that are not installed, and says so.
func (b *bench) pick(all []*target, list string) ([]*target, error) {
	names := []string{"direct", productName, standardName, "haproxy", "nginx", "httputil"}
	want, err := picked(list, names)
	if err != nil {
		return nil, err
	}
	var targets []*target
	for i, t := range all {
		switch {
		case t == nil && slices.Contains(want, names[i]):
			fmt.Fprintf(os.Stderr, "%s is not installed: its column is left out\n", names[i])
		case t != nil && slices.Contains(want, t.name):
			targets = append(targets, t)
		}
	}
	return targets, nil
}

// rounds runs each row of each target, the targets in a new order each time.
func (b *bench) rounds(ctx context.Context, targets []*target, only []string, n int) error {
	for _, t := range targets {
		if err := b.up(ctx, t); err != nil {
			return err
		}
		defer t.down()
	}
	for round := range n {
		for _, r := range rows {
			if !slices.Contains(only, r.name) || r.once && round > 0 {
				continue
			}
			for _, i := range rand.Perm(len(targets)) {
				if err := b.one(ctx, r, targets[i]); err != nil {
					b.problems = append(b.problems, fmt.Sprintf("%s of %s: %v", r.name, targets[i].name, err))
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				select {
				case <-b.engine.done:
					return fmt.Errorf("the engine ended: %s", b.engine.out)
				default:
				}
			}
		}
	}
	return nil
}

func (b *bench) up(ctx context.Context, t *target) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	calls, err := t.up(ctx, b.dir, b.key)
	b.count(t, calls)
	if err != nil {
		t.down()
	}
	return err
}

func (b *bench) one(ctx context.Context, r row, t *target) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.fresh && t.launch != nil {
		fresh := &target{name: t.name, launch: t.launch}
		if err := b.up(ctx, fresh); err != nil {
			return err
		}
		defer fresh.down()
		t = fresh
	}
	return r.run(b, t)
}

// head says what was measured on.
func head(out io.Writer, o options, database string) {
	fmt.Fprintf(out, "%s, %d cores, %s/%s, %s; usage goes to %s; %d rounds, medians [least–most], × ratio to %s round by round\n",
		processor(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), database, o.rounds, anchor)
	for name, args := range map[string][]string{"haproxy": {"-v"}, "nginx": {"-v"}} {
		if path := installed(name); path != "" {
			version, _ := exec.Command(path, args...).CombinedOutput()
			line, _, _ := strings.Cut(string(version), "\n")
			fmt.Fprintln(out, line)
		}
	}
	fmt.Fprintln(out)
}

// processor is what the system calls it.
func processor() string {
	raw, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(raw)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}

package makertest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

// SGPUs is a fake of the administrator's program for Moore Threads that keeps what it made.
type SGPUs struct {
	*sharetest.Tools
	mu   sync.Mutex
	made map[string]string // name → rest of its line
}

// NewSGPUs are cards without shares.
func NewSGPUs() *SGPUs {
	p := &SGPUs{made: map[string]string{}}
	p.Tools = sharetest.NewTools(map[string]func([]string) share.Output{"/usr/local/libexec/heteroflow/mthreads-sgpu": p.Call})
	return p
}

// Things lists the shares.
func (p *SGPUs) Things() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for name, rest := range p.made {
		out = append(out, name+" "+rest)
	}
	return out
}

// Call calls the program as anybody may.
func (p *SGPUs) Call(args []string) share.Output {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case len(args) == 1 && args[0] == "list":
		var b strings.Builder
		for _, name := range slices.Sorted(maps.Keys(p.made)) {
			fmt.Fprintf(&b, "%s %s\n", name, p.made[name])
		}
		return share.Output{Stdout: b.String()}
	case len(args) == 5 && args[0] == "create" && p.made[args[1]] == "":
		p.made[args[1]] = strings.Join(args[2:], " ")
		return share.Output{}
	case len(args) == 2 && p.made[args[1]] == "":
		return share.Output{Stderr: "there is no " + args[1], ExitCode: 2}
	case len(args) == 2 && args[0] == "setup":
		return share.Output{Stdout: "env MTHREADS_EXAMPLE=" + args[1] + "\nnode /dev/mtgpu." + args[1] + "\nruntime mthreads\n"}
	case len(args) == 2 && args[0] == "destroy":
		delete(p.made, args[1])
		return share.Output{}
	}
	return share.Output{Stderr: "usage", ExitCode: 64}
}

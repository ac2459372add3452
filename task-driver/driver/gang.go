package driver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/task-driver/access"
	"github.com/heteroflow/heteroflow/task-driver/barrier"
)

// GangConfig is the gang block of a task. The placement service reads it, and says in the grant what comes of it.
type GangConfig struct {
	Framework    string `codec:"framework"`
	Level        string `codec:"level"`
	Mode         string `codec:"mode"`
	OnLost       string `codec:"on_lost"`
	StartTimeout string `codec:"start_timeout"`
	Min          int    `codec:"min"`
}

// gangSchema is the schema of GangConfig.
func gangSchema() *hclspec.Spec {
	fields := nomadplugin.Fields{}
	for _, name := range []string{"framework", "level", "mode", "on_lost", "start_timeout"} {
		fields[name] = nomadplugin.Attr(name, "string", false)
	}
	fields["min"] = nomadplugin.Attr("min", "number", false)
	return nomadplugin.Object(fields)
}

// masterPort is the label of the port at which the members of a gang meet.
const masterPort = "master"

// npuAddresses is where the addresses of Ascend's NPUs are on a node.
const npuAddresses = "/etc/hccn.conf"

// errNoServer is said to a member of a gang on a node that cannot ask for the others.
var errNoServer = errors.New(`the task is a member of a gang, and this node's plugin config does not say where the members meet: write server = "http://<placement-service>:3333" into the config of plugin "heteroflow"`)

// checkServer refuses what is no address of a placement service.
func (c Config) checkServer() error {
	if c.Server == "" {
		if c.Token != "" {
			return errors.New("token: it is for a placement service that is not named: write server beside it, or leave it out")
		}
		return nil
	}
	if u, err := url.Parse(c.Server); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("server: %q is not an address: write for example %q", c.Server, "https://placement.example:3333")
	}
	return nil
}

// checkGang refuses a member that could not meet the others, before anything is touched.
func (s settings) checkGang(p *plan) error {
	g := p.share.gang
	switch {
	case g == nil && p.tc.Gang != nil:
		return errNotAdmitted
	case g == nil:
		return nil
	case s.Server == "":
		return errNoServer
	}
	return g.Check()
}

// meet waits for the other members of the task's gang, and takes what it is told into the plan: no member runs its command
// before all are ready to.
func (d *Driver) meet(ctx context.Context, p *plan, run runtime, r *record, event func(string)) error {
	g := p.share.gang
	if g == nil {
		return nil
	}
	if containers, ok := run.(*dockerRuntime); ok { // a member that still pulls its image is not ready
		ref, err := p.share.image(p.tc)
		if err != nil {
			return err
		}
		if _, err := containers.fetch(ctx, p, r, ref, event); err != nil {
			return err
		}
	}
	s, _ := d.current()
	client := &barrier.Client{Server: s.Server, Token: s.Token, HTTP: http.DefaultClient, Clock: clock.System()}
	told, err := client.Meet(ctx, p.arrival(os.ReadFile), g.StartTimeout(), event)
	if err != nil {
		return err
	}
	local := filepath.Join(p.cfg.GetAllocDir(), p.cfg.GetName(), "local")
	if err := barrier.WriteFiles(local, told.Files); err != nil {
		return fmt.Errorf("write the gang's files: %w", err)
	}
	p.share.gangEnv = told.Env
	p.env = taskEnv(p.cfg, p.tc, p.share, p.setup)
	return nil
}

// arrival is what the others have to know of the task.
func (p *plan) arrival(read func(string) ([]byte, error)) barrier.Arrival {
	a := barrier.Arrival{Grant: p.tc.Grant, AllocID: p.cfg.GetAllocId(), NodeID: p.cfg.GetNodeId(), Cards: []barrier.Card{}}
	if index, err := strconv.Atoi(p.cfg.GetEnv()["NOMAD_ALLOC_INDEX"]); err == nil && index >= 0 {
		a.Index = index
	}
	for _, port := range p.cfg.GetResources().GetPorts() {
		if port.GetLabel() == masterPort {
			a.Port, a.Address = int(port.GetValue()), port.GetHostIp()
		}
	}
	if a.Address == "0.0.0.0" || a.Address == "::" {
		a.Address = "" // every address of the node: the service knows one
	}
	var addresses map[int]string
	for _, c := range p.share.cards {
		if a.Vendor == "" {
			a.Vendor = string(c.Vendor)
		}
		if c.Vendor == accel.Ascend && addresses == nil {
			text, err := read(npuAddresses)
			if err != nil {
				text = nil // a node whose NPUs have no network of their own
			}
			addresses = barrier.CardAddresses(string(text))
		}
		a.Cards = append(a.Cards, barrier.Card{UUID: c.UUID, Index: c.Index, Address: addresses[c.Index]})
	}
	return a
}

// setGang puts in what the members of a gang need to find each other, in the place of what the job says. It can show no
// card and lift no limit.
func (s admission) setGang(env map[string]string) {
	dir := env["NOMAD_TASK_DIR"]
	for name, value := range s.gangEnv {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.HasPrefix(name, grant.EnvPrefix) || access.IsGuarded(name) || accel.IsVisibleVar(name) {
			continue
		}
		env[name] = strings.ReplaceAll(value, "${NOMAD_TASK_DIR}", dir)
	}
}

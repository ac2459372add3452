// Package config reads the configuration of the parts that run for long: a file in HCL, then the environment, then
// flags, each beating the one before. What the settings do belongs to the parts themselves.
package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// Part is what every long-running part is configured with.
type Part struct {
	Addr        string `hcl:"addr,optional"`         // host:port to listen on
	DatabaseURL string `hcl:"database_url,optional"` // postgres://… or sqlite:///path
	Anonymous   string `hcl:"anonymous,optional"`    // role of calls without a key: none, viewer, member or admin
	LogLevel    string `hcl:"log_level,optional"`    // trace, debug, info, warn or error
	LogJSON     bool   `hcl:"log_json,optional"`
	Record      string `hcl:"record,optional"` // folder in which the placement service keeps its decisions; none when empty
	Spool       string `hcl:"spool,optional"`  // of the gateway: folder for usage while the database is away
	Nomad       *Agent `hcl:"nomad,block"`
	Consul      *Agent `hcl:"consul,block"`
	Relay       *Relay `hcl:"relay,block"` // of the gateway
	Hold        *Hold  `hcl:"hold,block"`  // of the gateway
	// Preemption is of the placement service; nil evicts nothing.
	Preemption *Preemption `hcl:"preemption,block"`
	Queue      *Queue      `hcl:"queue,block"` // of the placement service
}

// Relay says how long backends of the gateway may take, and how much a client may send. What is empty or 0 is the
// gateway's default. Durations are written as 90s or 10m.
type Relay struct {
	Headers    string `hcl:"headers_timeout,optional"`     // to the headers of a stream
	Whole      string `hcl:"whole_timeout,optional"`       // to those of an answer that comes whole
	FirstToken string `hcl:"first_token_timeout,optional"` // from the headers of a stream to its first event
	Idle       string `hcl:"idle_timeout,optional"`        // between two pieces of an answer
	Keepalive  string `hcl:"keepalive,optional"`           // between comments in a silent stream; 0s for none
	Tries      int    `hcl:"tries,optional"`               // backends tried for one request; 1 to 5
	MaxBodyMB  int64  `hcl:"max_body_mb,optional"`         // MiB of a request's body
	Client     string `hcl:"client,optional"`              // how backends are reached: own, or net/http
	Server     string `hcl:"server,optional"`              // how clients are answered: own, or net/http
}

// Sides are the values of Relay.Client and Relay.Server; the first is the default.
var Sides = []string{"own", "net/http"}

// Times are the durations of a Relay, 0 for those left out; Keepalive is below 0 for none.
type Times struct {
	Headers, Whole, FirstToken, Idle, Keepalive time.Duration
}

// Times reads the durations and checks the rest. An error names the argument.
func (r *Relay) Times() (Times, error) {
	var t Times
	var problems []error
	read := func(name, text string, to *time.Duration, least time.Duration) {
		if text == "" {
			return
		}
		d, err := time.ParseDuration(text)
		if err != nil || d < least {
			problems = append(problems, fmt.Errorf("%s %q is no time that can be waited: write it as 90s or 10m", name, text))
			return
		}
		*to = d
	}
	read("headers_timeout", r.Headers, &t.Headers, time.Millisecond)
	read("whole_timeout", r.Whole, &t.Whole, time.Millisecond)
	read("first_token_timeout", r.FirstToken, &t.FirstToken, time.Millisecond)
	read("idle_timeout", r.Idle, &t.Idle, time.Millisecond)
	read("keepalive", r.Keepalive, &t.Keepalive, 0)
	if r.Keepalive != "" && t.Keepalive == 0 {
		t.Keepalive = -1
	}
	if r.Tries < 0 || r.Tries > 5 {
		problems = append(problems, fmt.Errorf("tries %d: write 1 to 5", r.Tries))
	}
	if r.MaxBodyMB < 0 || r.MaxBodyMB > 4096 {
		problems = append(problems, fmt.Errorf("max_body_mb %d: write 1 to 4096", r.MaxBodyMB))
	}
	for _, side := range [][2]string{{"client", r.Client}, {"server", r.Server}} {
		if side[1] != "" && !slices.Contains(Sides, side[1]) {
			problems = append(problems, fmt.Errorf("%s %q: write one of %s", side[0], side[1], strings.Join(Sides, ", ")))
		}
	}
	return t, errors.Join(problems...)
}

// Agent says where Nomad or Consul is; without an address there is no Consul. Certificates are named by Nomad's and
// Consul's own environment variables, such as NOMAD_CACERT.
type Agent struct {
	Address string `hcl:"address,optional"`
	Token   string `hcl:"token,optional"`
}

// Defaults of the two parts.
const (
	ServerAddr  = "0.0.0.0:3333"
	GatewayAddr = "0.0.0.0:8080"
	NomadAddr   = "http://127.0.0.1:4646"
	// Spool is a folder that outlives a restart of the machine.
	Spool = "/var/lib/heteroflow/usage-spool"
)

// New gives the defaults of a part that listens on addr.
func New(addr string) *Part {
	return &Part{Addr: addr, Anonymous: "none", LogLevel: "info", Nomad: &Agent{Address: NomadAddr}, Consul: &Agent{}, Relay: &Relay{}, Hold: &Hold{}}
}

// ReadFile reads a file over what is set. Unknown arguments and blocks are errors that name their place.
func (p *Part) ReadFile(path string) error {
	src, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	return p.read(path, src)
}

func (p *Part) read(name string, src []byte) error {
	file, diags := hclsyntax.ParseConfig(src, name, hcl.InitialPos)
	if diags.HasErrors() {
		return fmt.Errorf("configuration: %w", diags)
	}
	from := Part{}
	if diags := gohcl.DecodeBody(file.Body, nil, &from); diags.HasErrors() {
		return fmt.Errorf("configuration: %w", errors.Join(diags.Errs()...))
	}
	p.overlay(&from)
	return nil
}

// overlay takes what the other one sets.
func (p *Part) overlay(from *Part) {
	set(&p.Addr, from.Addr)
	set(&p.DatabaseURL, from.DatabaseURL)
	set(&p.Anonymous, from.Anonymous)
	set(&p.LogLevel, from.LogLevel)
	p.LogJSON = p.LogJSON || from.LogJSON
	set(&p.Record, from.Record)
	set(&p.Spool, from.Spool)
	if from.Relay != nil {
		p.Relay = from.Relay
	}
	if from.Preemption != nil {
		p.Preemption = from.Preemption
	}
	if from.Queue != nil {
		p.Queue = from.Queue
	}
	if from.Hold != nil {
		p.Hold = from.Hold
	}
	if from.Nomad != nil {
		set(&p.Nomad.Address, from.Nomad.Address)
		set(&p.Nomad.Token, from.Nomad.Token)
	}
	if from.Consul != nil {
		set(&p.Consul.Address, from.Consul.Address)
		set(&p.Consul.Token, from.Consul.Token)
	}
}

func set(target *string, value string) {
	if value != "" {
		*target = value
	}
}

// ReadEnv takes what the environment says, by the names that Nomad's and Consul's own tools use.
func (p *Part) ReadEnv(getenv func(string) string) {
	for name, target := range map[string]*string{
		"DATABASE_URL": &p.DatabaseURL, "HETEROFLOW_LOG_LEVEL": &p.LogLevel, "HETEROFLOW_SPOOL": &p.Spool,
		"NOMAD_ADDR": &p.Nomad.Address, "NOMAD_TOKEN": &p.Nomad.Token,
		"CONSUL_HTTP_ADDR": &p.Consul.Address, "CONSUL_HTTP_TOKEN": &p.Consul.Token,
	} {
		set(target, getenv(name))
	}
}

// Validate checks what can be checked before anything starts, and puts addresses into one form.
func (p *Part) Validate() error {
	var problems []error
	if p.DatabaseURL == "" {
		problems = append(problems, errors.New("no database: set database_url, DATABASE_URL or -database to postgres://user@host/name or sqlite:///path/file.db"))
	}
	switch p.Anonymous {
	case "none", "viewer", "member", "admin":
	default:
		problems = append(problems, fmt.Errorf("anonymous %q is no role: write none, viewer, member or admin", p.Anonymous))
	}
	_, err := p.Relay.Times()
	_, unheld := p.Hold.MaxWait()
	problems = append(problems, unheld)
	_, wrong := p.Preemption.Rules()
	_, impatient := p.Queue.Waits()
	problems = append(problems, err, wrong, impatient)
	p.Hold.Wake = withScheme(p.Hold.Wake)
	p.Nomad.Address = withScheme(p.Nomad.Address)
	p.Consul.Address = withScheme(p.Consul.Address)
	return errors.Join(append(problems, checkLevel(p.LogLevel))...)
}

func checkLevel(text string) error {
	if hclog.LevelFromString(text) == hclog.NoLevel {
		return fmt.Errorf("log_level %q is not known: write trace, debug, info, warn or error", text)
	}
	return nil
}

// withScheme completes host:port, which Consul's tools take for an address.
func withScheme(addr string) string {
	if addr == "" || strings.Contains(addr, "://") {
		return addr
	}
	return "http://" + addr
}

// Logger makes the logger of a part.
func (p *Part) Logger(name string, out io.Writer) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name: name, Level: hclog.LevelFromString(p.LogLevel), JSONFormat: p.LogJSON, Output: out,
	})
}

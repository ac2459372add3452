// Package config reads the configuration of the parts that run for long: a file in HCL, then the environment, then
// flags, each beating the one before. What the settings do belongs to the parts themselves.
package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

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
	Nomad       *Agent `hcl:"nomad,block"`
	Consul      *Agent `hcl:"consul,block"`
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
)

// New gives the defaults of a part that listens on addr.
func New(addr string) *Part {
	return &Part{Addr: addr, Anonymous: "none", LogLevel: "info", Nomad: &Agent{Address: NomadAddr}, Consul: &Agent{}}
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
		"DATABASE_URL": &p.DatabaseURL, "HETEROFLOW_LOG_LEVEL": &p.LogLevel,
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

package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func env(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestPart_EnvironmentBeatsFile(t *testing.T) {
	t.Parallel()
	p := New(ServerAddr)
	err := p.read("server.hcl", []byte(`
addr         = "127.0.0.1:1"
database_url = "sqlite:///file.db"
anonymous    = "viewer"
log_json     = true
nomad {
  address = "https://nomad:4646"
  token   = "from-file"
}
consul {
  address = "consul:8500"
}
spool = "/var/spool/x"
relay {
  idle_timeout = "2m"
  tries        = 1
}
hold {
  wake   = "service:3333"
  wait   = "2m"
  max_mb = 8
}
`))
	if err != nil {
		t.Fatal(err)
	}
	p.ReadEnv(env(map[string]string{"NOMAD_TOKEN": "from-env", "DATABASE_URL": "postgres://db/x"}))
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	want := &Part{
		Addr: "127.0.0.1:1", DatabaseURL: "postgres://db/x", Anonymous: "viewer", LogLevel: "info", LogJSON: true,
		Nomad: &Agent{Address: "https://nomad:4646", Token: "from-env"}, Consul: &Agent{Address: "http://consul:8500"},
		Spool: "/var/spool/x", Relay: &Relay{Idle: "2m", Tries: 1},
		Hold: &Hold{Wake: "http://service:3333", Wait: "2m", MaxMB: 8},
	}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPart_UnknownKeysAreErrors(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		"adr = \"x\"":                        `server.hcl:1,1-4: Unsupported argument`,
		"nomad {\n  adress = \"x\"\n}":       `server.hcl:2,3-9`,
		"postgres {}":                        "server.hcl:1,1-9",
		"addr =":                             "server.hcl:1,7",
		"consul {}\nconsul {}":               "Duplicate consul block",
		"log_json = \"perhaps\"":             "server.hcl:1,",
		"nomad { address = [\"a\", \"b\"] }": "server.hcl:1,",
	} {
		err := New(ServerAddr).read("server.hcl", []byte(src))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v does not say %q", src, err, want)
		}
	}
}

func TestPart_Validate(t *testing.T) {
	t.Parallel()
	p := New(GatewayAddr)
	p.Anonymous, p.LogLevel = "root", "loud"
	p.Relay = &Relay{Idle: "soon", Headers: "-1s", Keepalive: "0s", Tries: 9, MaxBodyMB: -1, Client: "curl", Server: "nginx"}
	p.Hold = &Hold{Wait: "a while", MaxRequests: -1, MaxMB: 1 << 21}
	err := p.Validate()
	for _, want := range []string{"no database", `anonymous "root"`, `log_level "loud"`, `idle_timeout "soon"`, `headers_timeout "-1s"`, "tries 9", "max_body_mb -1", `client "curl": write one of own, net/http`, `server "nginx": write one of own, net/http`, `wait "a while"`, "max_requests -1", "max_mb 2097152"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("addr = \"x\"\nnomad {}\n")
	f.Fuzz(func(_ *testing.T, src string) {
		p := New(ServerAddr)
		if p.read("a.hcl", []byte(src)) == nil {
			_ = p.Validate() // either answer is fine; it must not panic
		}
	})
}

package driver

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// Config is the plugin's config block in the agent's configuration.
type Config struct {
	StateDir       string   `codec:"state_dir"`
	GrantPublicKey string   `codec:"grant_public_key"` // base64 of an Ed25519 public key; empty: grants are not verified
	OrphanAfter    string   `codec:"orphan_after"`
	Docker         *Docker  `codec:"docker"`
	Process        *Process `codec:"process"`
}

// Docker are the options of the container runtime.
type Docker struct {
	Enabled           bool     `codec:"enabled"`
	Endpoint          string   `codec:"endpoint"`
	AuthFile          string   `codec:"auth_file"`
	VolumesEnabled    bool     `codec:"volumes_enabled"`
	AllowPrivileged   bool     `codec:"allow_privileged"`
	AllowHostNetwork  bool     `codec:"allow_host_network"`
	AllowHostPID      bool     `codec:"allow_host_pid"`
	AllowHostIPC      bool     `codec:"allow_host_ipc"`
	AllowDockerSocket bool     `codec:"allow_docker_socket"`
	AllowCaps         []string `codec:"allow_caps"`
	AllowRuntimes     []string `codec:"allow_runtimes"`
}

// Process are the options of the process runtime.
type Process struct {
	Enabled bool   `codec:"enabled"`
	User    string `codec:"user"`
}

// defaultCaps are the capabilities a container has unless the job drops them: Docker's own without NET_RAW, by which
// a task could answer in its neighbours' place.
var defaultCaps = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// defaultRuntimes are the OCI runtimes of the brands' container toolkits, beside the usual one.
var defaultRuntimes = []string{"runc", "nvidia", "ascend", "mthreads", "amd"}

const defaultStateDir = "/var/lib/heteroflow"

// configSchema is the schema of Config.
func configSchema() *hclspec.Spec {
	return nomadplugin.Object(nomadplugin.Fields{
		"state_dir":        nomadplugin.OptString("state_dir", defaultStateDir),
		"grant_public_key": nomadplugin.Attr("grant_public_key", "string", false),
		"orphan_after":     nomadplugin.OptString("orphan_after", "10m"),
		"docker": nomadplugin.Block("docker", false, nomadplugin.Object(nomadplugin.Fields{
			"enabled":             nomadplugin.OptBool("enabled", true),
			"endpoint":            nomadplugin.Attr("endpoint", "string", false),
			"auth_file":           nomadplugin.Attr("auth_file", "string", false),
			"volumes_enabled":     nomadplugin.OptBool("volumes_enabled", false),
			"allow_privileged":    nomadplugin.OptBool("allow_privileged", false),
			"allow_host_network":  nomadplugin.OptBool("allow_host_network", false),
			"allow_host_pid":      nomadplugin.OptBool("allow_host_pid", false),
			"allow_host_ipc":      nomadplugin.OptBool("allow_host_ipc", false),
			"allow_docker_socket": nomadplugin.OptBool("allow_docker_socket", false),
			"allow_caps":          nomadplugin.Attr("allow_caps", "list(string)", false),
			"allow_runtimes":      nomadplugin.Attr("allow_runtimes", "list(string)", false),
		})),
		"process": nomadplugin.Block("process", false, nomadplugin.Object(nomadplugin.Fields{
			"enabled": nomadplugin.OptBool("enabled", false),
			"user":    nomadplugin.Attr("user", "string", false),
		})),
	})
}

// settings is a Config that has been checked.
type settings struct {
	Config
	key         ed25519.PublicKey // nil: grants are taken as they are
	orphanAfter time.Duration     // 0: never
}

// settle fills defaults and checks. Each problem is a sentence that says what to write.
func (c Config) settle() (settings, error) {
	s := settings{Config: c}
	if s.Docker == nil {
		s.Docker = &Docker{Enabled: true}
	}
	if s.Process == nil {
		s.Process = &Process{}
	}
	if s.StateDir == "" {
		s.StateDir = defaultStateDir
	}
	var problems []error
	if !filepath.IsAbs(s.StateDir) {
		problems = append(problems, fmt.Errorf("state_dir: %q is not absolute: write a full path, for example %q", s.StateDir, defaultStateDir))
	}
	if s.Docker.Endpoint == "" {
		s.Docker.Endpoint = docker.DefaultHost()
	}
	if scheme, _, ok := strings.Cut(s.Docker.Endpoint, "://"); !ok || !slices.Contains([]string{"unix", "tcp", "http", "https"}, scheme) {
		problems = append(problems, fmt.Errorf(`docker.endpoint: %q is not an address: write for example "unix:///var/run/docker.sock" or "tcp://127.0.0.1:2376"`, s.Docker.Endpoint))
	}
	if s.Docker.AllowCaps == nil {
		s.Docker.AllowCaps = defaultCaps
	}
	if s.Docker.AllowRuntimes == nil {
		s.Docker.AllowRuntimes = defaultRuntimes
	}
	if s.GrantPublicKey != "" {
		key, err := base64.StdEncoding.DecodeString(s.GrantPublicKey)
		if err != nil || len(key) != ed25519.PublicKeySize {
			problems = append(problems, errors.New("grant_public_key: it is not an Ed25519 key: write the base64 text that the placement service shows as public_key at /api/v1/info"))
		}
		s.key = key
	}
	if s.OrphanAfter != "" {
		d, err := time.ParseDuration(s.OrphanAfter)
		if err != nil || d < 0 {
			problems = append(problems, fmt.Errorf(`orphan_after: %q is not a duration: write for example "10m", or "0s" to keep tasks nobody asks for`, s.OrphanAfter))
		}
		s.orphanAfter = d
	}
	return s, errors.Join(problems...)
}

func (s settings) tasksDir() string  { return filepath.Join(s.StateDir, "tasks") }
func (s settings) leasesDir() string { return filepath.Join(s.StateDir, "leases") }

// capabilities are the container's: the defaults and what the job adds within the allowed ones, less what it drops.
func (d *Docker) capabilities(add, drop []string) ([]string, error) {
	has := map[string]bool{}
	norm := func(s string) string { return strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(s)), "CAP_") }
	allowed := map[string]bool{}
	for _, c := range d.AllowCaps {
		allowed[norm(c)] = true
	}
	for _, c := range defaultCaps {
		has[c] = allowed[c] || allowed["ALL"]
	}
	for _, c := range add {
		if !allowed[norm(c)] && !allowed["ALL"] {
			return nil, fmt.Errorf("cap_add: %s is not allowed on this node: leave it out, or have it added to docker { allow_caps } in the plugin's config", c)
		}
		has[norm(c)] = true
	}
	for _, c := range drop {
		if norm(c) == "ALL" {
			for _, d := range defaultCaps {
				has[d] = slices.ContainsFunc(add, func(a string) bool { return norm(a) == d })
			}
			continue
		}
		has[norm(c)] = false
	}
	var list []string
	for c, on := range has {
		if on {
			list = append(list, c)
		}
	}
	slices.Sort(list)
	return list, nil
}

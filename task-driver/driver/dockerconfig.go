package driver

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/task-driver/access"
	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// Docker are the options of the container runtime.
type Docker struct {
	Enabled       bool              `codec:"enabled"`
	Endpoint      string            `codec:"endpoint"`
	TLS           *docker.TLS       `codec:"tls"`
	AuthFile      string            `codec:"auth_file"`
	AuthHelper    string            `codec:"auth_helper"`
	RequireDigest bool              `codec:"require_digest"`
	PullSilence   string            `codec:"pull_activity_timeout"`
	PidsLimit     int64             `codec:"pids_limit"`
	Logging       *Logging          `codec:"logging"`
	NoLogs        bool              `codec:"disable_log_collection"`
	Runtimes      map[string]string `codec:"runtimes"` // name of a brand's OCI runtime, where it has another than the maker's
	SELinux       string            `codec:"volumes_selinuxlabel"`
	InfraImage    string            `codec:"infra_image"` // holds the network of a group; empty: one made on the node
	InfraLimit    string            `codec:"infra_image_pull_timeout"`
	GC            *GC               `codec:"gc"`

	VolumesEnabled    bool     `codec:"volumes_enabled"`
	AllowPrivileged   bool     `codec:"allow_privileged"`
	AllowHostNetwork  bool     `codec:"allow_host_network"`
	AllowHostPID      bool     `codec:"allow_host_pid"`
	AllowHostIPC      bool     `codec:"allow_host_ipc"`
	AllowDockerSocket bool     `codec:"allow_docker_socket"`
	AllowCaps         []string `codec:"allow_caps"`
	AllowRuntimes     []string `codec:"allow_runtimes"`
	AllowDevices      []string `codec:"allow_devices"`
	AllowLogDrivers   []string `codec:"allow_log_drivers"`

	pullSilence time.Duration // 0: a pull is never given up for silence
	infraLimit  time.Duration
	imageDelay  time.Duration // 0: images stay
	keepEnded   bool          // containers of tasks that are destroyed stay, ended
	dangling    dangling
}

// GC says what is removed when it is of no more use, in the stock driver's words.
type GC struct {
	Image      bool      `codec:"image"`
	ImageDelay string    `codec:"image_delay"`
	Container  bool      `codec:"container"`
	Dangling   *Dangling `codec:"dangling_containers"`
}

// Dangling says what becomes of containers whose task Nomad does not know.
type Dangling struct {
	Enabled bool   `codec:"enabled"`
	DryRun  bool   `codec:"dry_run"`
	Period  string `codec:"period"`
	Grace   string `codec:"creation_grace"`
}

// dangling is a Dangling that has been checked; times that are 0 are orphan_after.
type dangling struct {
	off, dryRun   bool
	period, grace time.Duration
}

// Logging says where the daemon keeps a container's output.
type Logging struct {
	Type   string            `codec:"type"`
	Driver string            `codec:"driver"` // the stock driver's other word for type
	Config map[string]string `codec:"config"`
}

// defaultCaps are the capabilities a container has unless the job drops them: Docker's own without NET_RAW, by which
// a task could answer in its neighbours' place.
var defaultCaps = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// defaultRuntimes are the OCI runtimes of the brands' container toolkits, beside the usual one. A maker's runtime is a
// job's to choose only with a card of its brand.
func defaultRuntimes() []string { return append([]string{"runc"}, access.Runtimes()...) }

// defaultPullSilence is how long nothing may be heard of a pull.
const defaultPullSilence = 2 * time.Minute

// defaultLogDrivers keep output on the node, where it can be read again.
var defaultLogDrivers = []string{"json-file", "local", "journald", "none"}

// dockerSchema is the schema of Docker. What the stock driver has and this one refuses is in it too, so that the refusal
// is a sentence of ours.
func dockerSchema() *hclspec.Spec {
	text := func(name string) *hclspec.Spec { return nomadplugin.Attr(name, "string", false) }
	list := func(name string) *hclspec.Spec { return nomadplugin.Attr(name, "list(string)", false) }
	flag := func(name string) *hclspec.Spec { return nomadplugin.OptBool(name, false) }
	fields := nomadplugin.Fields{
		"enabled":  nomadplugin.OptBool("enabled", true),
		"endpoint": text("endpoint"),
		"tls": nomadplugin.Block("tls", false, nomadplugin.Object(nomadplugin.Fields{
			"ca": text("ca"), "cert": text("cert"), "key": text("key"),
		})),
		"auth_file": text("auth_file"), "auth_helper": text("auth_helper"), "require_digest": flag("require_digest"),
		"pull_activity_timeout": nomadplugin.OptString("pull_activity_timeout", "2m"),
		"pids_limit":            nomadplugin.OptNumber("pids_limit", 0),
		"logging":               nomadplugin.Block("logging", false, loggingSchema()), "disable_log_collection": flag("disable_log_collection"),
		"runtimes": nomadplugin.BlockAttrs("runtimes", "string"), "volumes_selinuxlabel": text("volumes_selinuxlabel"),
		"volumes_enabled": flag("volumes_enabled"), "allow_privileged": flag("allow_privileged"), "allow_host_network": flag("allow_host_network"),
		"allow_host_pid": flag("allow_host_pid"), "allow_host_ipc": flag("allow_host_ipc"), "allow_docker_socket": flag("allow_docker_socket"),
		"allow_caps": list("allow_caps"), "allow_runtimes": list("allow_runtimes"), "allow_devices": list("allow_devices"),
		"allow_log_drivers": list("allow_log_drivers"),
		"infra_image":       text("infra_image"), "infra_image_pull_timeout": nomadplugin.OptString("infra_image_pull_timeout", "5m"),
		"gc": nomadplugin.Block("gc", false, nomadplugin.Object(nomadplugin.Fields{
			"image": flag("image"), "image_delay": nomadplugin.OptString("image_delay", "3m"), "container": nomadplugin.OptBool("container", true),
			"dangling_containers": nomadplugin.Block("dangling_containers", false, nomadplugin.Object(nomadplugin.Fields{
				"enabled": nomadplugin.OptBool("enabled", true), "dry_run": flag("dry_run"), "period": text("period"), "creation_grace": text("creation_grace"),
			})),
		})),
	}
	maps.Copy(fields, refusedPluginFields())
	return nomadplugin.Object(fields)
}

func loggingSchema() *hclspec.Spec {
	return nomadplugin.Object(nomadplugin.Fields{
		"type": nomadplugin.Attr("type", "string", false), "driver": nomadplugin.Attr("driver", "string", false),
		"config": nomadplugin.BlockAttrs("config", "string"),
	})
}

// settle fills defaults and checks.
func (d *Docker) settle() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf("docker."+format, args...)) }
	if d.Endpoint == "" {
		d.Endpoint = docker.DefaultHost()
	}
	if scheme, _, ok := strings.Cut(d.Endpoint, "://"); !ok || !slices.Contains([]string{"unix", "tcp", "http", "https"}, scheme) {
		bad(`endpoint: %q is not an address: write for example "unix:///var/run/docker.sock" or "tcp://127.0.0.1:2376"`, d.Endpoint)
	}
	if t := d.TLS; t != nil && (t.CA == "" || (t.Cert == "") != (t.Key == "")) {
		bad("tls: it needs ca, and cert and key together: write the paths of the three .pem files")
	}
	if d.AllowCaps == nil {
		d.AllowCaps = defaultCaps
	}
	if d.AllowRuntimes == nil {
		d.AllowRuntimes = append(defaultRuntimes(), slices.Collect(maps.Values(d.Runtimes))...)
	}
	if d.AllowLogDrivers == nil {
		d.AllowLogDrivers = defaultLogDrivers
	}
	d.pullSilence = defaultPullSilence
	if d.PullSilence != "" {
		wait, err := time.ParseDuration(d.PullSilence)
		if err != nil || wait < 0 || wait > 0 && wait < time.Second {
			bad(`pull_activity_timeout: %q is not a time a pull may be silent: write for example "2m", or "0s" for ever`, d.PullSilence)
		}
		d.pullSilence = wait
	}
	atLeast := func(option, text string, least, otherwise time.Duration) time.Duration {
		if text == "" {
			return otherwise
		}
		t, err := time.ParseDuration(text)
		if err != nil || t < least {
			bad(`%s: %q is not a time of at least %s: write for example "5m"`, option, text, least)
		}
		return t
	}
	d.infraLimit = atLeast("infra_image_pull_timeout", d.InfraLimit, time.Second, 5*time.Minute)
	if gc := d.GC; gc != nil {
		if delay := atLeast("gc.image_delay", gc.ImageDelay, time.Second, 3*time.Minute); gc.Image {
			d.imageDelay = delay
		}
		d.keepEnded = !gc.Container
		if c := gc.Dangling; c != nil {
			// Nomad needs a while to bring its tasks back after a restart: until then they look like nobody's.
			d.dangling = dangling{
				off: !c.Enabled, dryRun: c.DryRun,
				period: atLeast("gc.dangling_containers.period", c.Period, time.Minute, 0), grace: atLeast("gc.dangling_containers.creation_grace", c.Grace, time.Minute, 0),
			}
		}
	}
	for _, brand := range slices.Sorted(maps.Keys(d.Runtimes)) {
		if _, err := accel.ParseVendor(brand); err != nil {
			bad("runtimes: %w", err)
		}
	}
	if d.SELinux != "" && d.SELinux != "z" && d.SELinux != "Z" {
		bad(`volumes_selinuxlabel: %q is not a label: write "z" where several containers share a folder, or "Z"`, d.SELinux)
	}
	if d.PidsLimit < 0 {
		bad("pids_limit: %d is negative: write how many processes a task may have, or 0 for no limit", d.PidsLimit)
	}
	for _, pattern := range d.AllowDevices {
		if _, err := filepath.Match(pattern, "/dev/x"); err != nil || !strings.HasPrefix(pattern, "/dev/") {
			bad(`allow_devices: %q is not a path below /dev: write for example "/dev/fuse" or "/dev/infiniband/*"`, pattern)
		}
	}
	return errors.Join(problems...)
}

// runtimeNames are the makers' runtimes that have other names on this node.
func (d *Docker) runtimeNames() map[accel.Vendor]string {
	out := map[accel.Vendor]string{}
	for brand, name := range d.Runtimes {
		if v, err := accel.ParseVendor(brand); err == nil {
			out[v] = name
		}
	}
	return out
}

// logging is where a container's output is kept: the task's wish, the node's, or two files of 20 MiB. Nomad keeps the logs
// themselves, but a daemon that begins a new file while its reader is behind skips what is left of the old one: the file
// must hold the largest burst.
func (d *Docker) logging(task *Logging) (kind string, options map[string]string, err error) {
	kind, options = "json-file", map[string]string{"max-file": "2", "max-size": "20m"}
	for _, l := range []*Logging{d.Logging, task} {
		if l == nil {
			continue
		}
		want := l.Type
		if want == "" {
			want = l.Driver
		}
		if want != "" && want != kind {
			kind, options = want, map[string]string{}
		}
		if len(l.Config) > 0 {
			options = maps.Clone(l.Config)
		}
	}
	if task != nil && kind != "json-file" && !slices.Contains(d.AllowLogDrivers, kind) && (d.Logging == nil || kind != d.Logging.Type) {
		return "", nil, fmt.Errorf("logging: the log driver %q is not allowed on this node: write one of %s, or have it added to docker { allow_log_drivers } in the plugin's config", kind, strings.Join(d.AllowLogDrivers, ", "))
	}
	return kind, options, nil
}

// pids is the limit of processes: the task's, within the node's.
func (d *Docker) pids(task int64) (int64, error) {
	if d.PidsLimit == 0 || task == 0 {
		return max(task, d.PidsLimit), nil
	}
	if task > d.PidsLimit {
		return 0, fmt.Errorf("pids_limit: %d is more than the %d that this node allows: write at most that", task, d.PidsLimit)
	}
	return task, nil
}

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

// Package docker runs a task as a container of a Docker Engine: images, containers, logs, statistics and exec
// sessions in words of its own. engine.go, images.go and translate.go are the only files that know the Engine's
// client library, so that its successor can take its place. What a job may ask for, and anything of Nomad's protocol, do not belong here.
package docker

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// Labels by which containers are found again. A container without LabelState is never touched.
const (
	LabelTask  = "io.heteroflow.task_id"
	LabelState = "io.heteroflow.state_dir" // the driver's state folder: drivers on one daemon tell their own apart
	// LabelNetwork is the allocation whose network a container holds. Such a container is no task.
	LabelNetwork = "io.heteroflow.network"
)

// MinAPIVersion is the oldest Engine API that is supported, that of Docker 18.09.
const MinAPIVersion = "1.39"

// ErrNotFound is returned for a container or image that the daemon does not have.
var ErrNotFound = errors.New("not found")

// ErrNameInUse is returned when another container has the name.
var ErrNameInUse = errors.New("the name is in use")

// ErrNoLogs is returned where the daemon's log driver cannot be read.
var ErrNoLogs = errors.New("the daemon's log driver cannot be read")

// ErrImageInUse is returned for an image that is to be removed and that a container has.
var ErrImageInUse = errors.New("a container has the image")

// ErrNotRunning is returned for a signal to a container that has ended.
var ErrNotRunning = errors.New("the container does not run")

// UnreachableError says that the daemon did not answer. Trying again later may succeed.
type UnreachableError struct {
	Host string
	Err  error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("the Docker daemon at %s cannot be reached (%v): start it (systemctl start docker), or set docker { endpoint } in the plugin's config", e.Host, e.Err)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// Temporary tells callers that the same call may succeed later.
func (e *UnreachableError) Temporary() bool { return true }

// DefaultHost is where the daemon is expected: DOCKER_HOST, else its usual socket.
func DefaultHost() string {
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		return host
	}
	return "unix:///var/run/docker.sock"
}

// Info is what the daemon says of itself.
type Info struct {
	At         time.Time // when it said so
	Version    string
	APIVersion string
	Runtimes   []string // OCI runtimes it can start containers with, sorted
	RootDir    string
	CDIDirs    []string // where it looks for CDI specifications; none when it does not resolve CDI names
}

// TLS are the files of a connection to a daemon that asks for certificates.
type TLS struct {
	CA   string `json:"ca,omitempty" codec:"ca"`
	Cert string `json:"cert,omitempty" codec:"cert"`
	Key  string `json:"key,omitempty" codec:"key"`
}

// Image is what the daemon says of one image it has.
type Image struct {
	ID  string
	Env []string // defaults of a container's environment, name=value
}

// Auth are credentials for a registry. They never appear in a log or an error.
type Auth struct {
	Username      string `json:"username,omitempty" codec:"username"`
	Password      string `json:"password,omitempty" codec:"password"`
	ServerAddress string `json:"serveraddress,omitempty" codec:"server_address"`
	Email         string `json:"email,omitempty" codec:"email"` // not sent: registries stopped reading it
	IdentityToken string `json:"identitytoken,omitempty" codec:"-"`
}

// Container is what is asked of the daemon for one task.
type Container struct {
	Name, Image         string
	Entrypoint, Command []string
	Env                 []string // name=value, sorted
	Labels              map[string]string
	User, WorkDir       string
	Hostname            string
	StopSignal          string
	StopTimeout         time.Duration

	Mounts  []Mount
	Devices []Device
	Ports   []Port

	MemoryBytes        int64 // hard limit; 0 is none. Swap is off under it
	MemoryReserveBytes int64
	CPUShares          int64
	CPUQuotaUS         int64
	CPUPeriodUS        int64
	CPUSet             string
	PidsLimit          int64
	OOMScoreAdj        int // 0–1000: how soon the kernel ends it for want of memory
	ShmBytes           int64
	Ulimits            []Ulimit

	NetworkMode, PIDMode, IPCMode     string
	UTSMode, UserNSMode, CgroupNSMode string
	DNS, DNSSearch, DNSOptions        []string
	ExtraHosts                        []string
	NetworkAliases                    []string // on a network of the daemon that has a name
	IPv4Address, IPv6Address          string   // likewise
	MACAddress                        string
	CapAdd, CapDrop                   []string
	GroupAdd, SecurityOpt             []string
	Sysctls, StorageOpt               map[string]string
	ReadOnlyRoot, Privileged, Init    bool
	TTY, OpenStdin                    bool
	NoHealthCheck                     bool     // the image's own is switched off
	Runtime                           string   // OCI runtime, the daemon's default when empty
	CDI                               []string // qualified names of CDI devices
	LogType                           string   // the daemon's log driver
	LogOptions                        map[string]string
}

// Mount is one mount of a container. Type is bind, volume or tmpfs.
type Mount struct {
	Type, Source, Target string
	ReadOnly             bool
	Propagation          string            // of a bind: rprivate, rslave, rshared
	SELinux              string            // of a bind: z or Z, by which the daemon labels the source
	SizeBytes            int64             // of a tmpfs
	Mode                 uint32            // of a tmpfs
	NoCopy               bool              // of a volume
	Labels               map[string]string // of a volume
	Driver               string            // of a volume
	DriverOptions        map[string]string
}

// Device is one device node of the host inside a container.
type Device struct{ HostPath, Path, Permissions string }

// Port publishes one port of a container, TCP and UDP, at an address of the host.
type Port struct {
	HostIP          string
	Host, Container int
}

// Ulimit is one resource limit of the container's processes.
type Ulimit struct {
	Name       string
	Soft, Hard int64
}

// State is what the daemon says of one container.
type State struct {
	Running   bool
	PID       int // of its first process, as its daemon counts them; 0 when it does not run
	ExitCode  int
	OOMKilled bool
	Error     string
	StartedAt time.Time
	EndedAt   time.Time
	IP        string
	IPv6      string // global address
	Namespace string // path of its network name space on the daemon's machine
	TTY       bool
	TaskID    string // label LabelTask
	Image     string
	// Health is what the image's own HEALTHCHECK says: starting, healthy, unhealthy; empty without one. HealthOutput is what
	// it printed last.
	Health, HealthOutput string
}

// Found is one container of a list.
type Found struct {
	ID, TaskID string
	StateDir   string // label LabelState
	Network    string // label LabelNetwork
	Running    bool
	CreatedAt  time.Time
}

// ExecSpec is a command to run inside a container.
type ExecSpec struct {
	Command []string
	TTY     bool
}

// Size is the size of a terminal in characters.
type Size struct{ Height, Width int }

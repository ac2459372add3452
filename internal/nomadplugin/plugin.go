// Package nomadplugin is the wire contract with Nomad's plugin host, seen from the plugin: the interfaces that an
// author implements, the schema builder and decoder of configuration, and the servers that keep every promise the
// host relies on. What a device or a driver does lives with its author; the host's side lives in
// nomadplugin/host.
package nomadplugin

import (
	"context"
	"io"
	"time"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
)

// APIVersion is the version of the device and the driver interface, the same word for both.
const APIVersion = "v0.1.0"

// Info names a plugin. Name must equal the file name of the binary, because a plugin block is found by file name
// and a job's driver by this name. Version must parse as a version, such as "0.1.0".
type Info struct{ Name, Version string }

// Base is what every plugin answers.
type Base interface {
	Info() Info
	// ConfigSchema describes the plugin's config block. It is never nil: a plugin without options returns an
	// empty Object.
	ConfigSchema() *hclspec.Spec
	// Configure takes the decoded config block. It must be pure: the host calls it several times, in several
	// processes, also beside an older instance that is still at work.
	Configure(msgpack []byte) error
}

// Device is a device plugin.
type Device interface {
	Base
	// Fingerprint sends the full list at once and then on every change, and returns only when ctx ends. The
	// server keeps the stream open whatever it returns, and calls it again after a pause when it came back early.
	// An invalid group is dropped with a log line, never sent.
	Fingerprint(ctx context.Context, send func([]*devicepb.DeviceGroup) error) error
	// Reserve answers for the instances of one device entry of an allocation. It may come several times for the
	// same ids and nothing tells the plugin when the use ends.
	Reserve(ctx context.Context, ids []string) (*devicepb.ContainerReservation, error)
	// Stats sends samples about every interval until ctx ends. Missing timestamps are filled with the present.
	Stats(ctx context.Context, every time.Duration, send func([]*devicepb.DeviceGroupStats) error) error
}

// Driver is a task driver.
type Driver interface {
	Base
	TaskConfigSchema() *hclspec.Spec
	Capabilities() *driverpb.DriverCapabilities
	// Fingerprint follows the rules of Device.Fingerprint.
	Fingerprint(ctx context.Context, send func(*driverpb.FingerprintResponse) error) error
	// Start starts a task. Errors end the allocation unless they are marked with Recoverable. A handle without
	// version or config is completed by the server.
	Start(ctx context.Context, cfg *driverpb.TaskConfig) (*driverpb.TaskHandle, *driverpb.NetworkOverride, error)
	// Recover takes a task over from an earlier process. It answers nil for a task that is already known.
	Recover(ctx context.Context, h *driverpb.TaskHandle) error
	// Wait blocks until the task has ended. Several calls may wait at once, and a call after the end answers too.
	Wait(ctx context.Context, id string) (*driverpb.ExitResult, error)
	Stop(ctx context.Context, id string, timeout time.Duration, signal string) error
	Destroy(ctx context.Context, id string, force bool) error
	Inspect(ctx context.Context, id string) (*driverpb.TaskStatus, map[string]string, error)
	// Stats sends samples about every interval until ctx or the task ends. ErrUnsupported ends it for good.
	Stats(ctx context.Context, id string, every time.Duration, send func(*driverpb.TaskStats) error) error
	// Events sends texts about tasks until ctx ends.
	Events(ctx context.Context, send func(*driverpb.DriverTaskEvent) error) error
	Signal(ctx context.Context, id, signal string) error
	// Exec runs a command beside the task; a timeout of 0 is no limit.
	Exec(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, res *driverpb.ExitResult, err error)
	ExecStream(ctx context.Context, id string, s *ExecStream) (*driverpb.ExitResult, error)
}

// NetworkMaker is a Driver that makes the network of a group itself, before the first of its tasks starts. Its capabilities say
// MustCreateNetwork.
type NetworkMaker interface {
	// CreateNetwork makes the network name space of an allocation; one that is there already is answered with created = false.
	// hostname is empty where the job, or the host's version, names none.
	CreateNetwork(ctx context.Context, allocID, hostname string) (spec *driverpb.NetworkIsolationSpec, created bool, err error)
	// DestroyNetwork removes it after the last task. One that is gone is no error.
	DestroyNetwork(ctx context.Context, allocID string, spec *driverpb.NetworkIsolationSpec) error
}

// ExecStream is one interactive command. Stdin ends with io.EOF when the user closes it. With TTY, Stderr gets
// nothing. Resize is closed when the user leaves.
type ExecStream struct {
	Command        []string
	TTY            bool
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan TerminalSize
}

// TerminalSize is the size of the user's terminal in characters.
type TerminalSize struct{ Height, Width int }

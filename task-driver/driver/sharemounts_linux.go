package driver

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// errNotSeen says that a container's file system cannot be looked at from here.
var errNotSeen = errors.New("the container's processes are not seen from the driver")

// sharesSeen holds what a container that runs sees at the places of its shares against what was mounted there. A link in an image
// leads a mount elsewhere: that of a share away from its place, or one of the job to the place of a share. Docker compares
// paths as they are written, so that only the container tells. It is nil too for one that has ended.
func sharesSeen(pid int, container string, mounts []share.Mount) error {
	proc := "/proc/" + strconv.Itoa(pid)
	groups, err := os.ReadFile(proc + "/cgroup")
	switch {
	case err == nil && !strings.Contains(string(groups), container): // of a daemon that counts processes otherwise, or used again
		return errNotSeen
	case err == nil:
		var info []byte
		if info, err = os.ReadFile(proc + "/mountinfo"); err == nil {
			err = sharesAt(proc+"/root", string(info), mounts)
		}
	}
	if gone(err) && !alive(pid) {
		return nil
	}
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", errNotSeen, err)
	}
	return err
}

func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

func alive(pid int) bool { return !errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

// sharesAt is sharesSeen for a root folder, with what /proc tells of the mounts below it.
func sharesAt(root, mountinfo string, mounts []share.Mount) error {
	var targets []string
	for _, m := range mounts {
		targets = append(targets, path.Clean(m.Target))
	}
	for i, m := range mounts {
		if err := isAt(root, targets[i], m.Source); err != nil {
			return err
		}
		for line := range strings.Lines(mountinfo) {
			fields := strings.Fields(line)
			if len(fields) < 5 {
				continue
			}
			if at := mountPath.Replace(fields[4]); at != targets[i] && strings.HasPrefix(at, targets[i]+"/") && !slices.Contains(targets, at) {
				return fmt.Errorf("something is mounted at %s, into what the task's share has at %s: leave out the mount that a link in the image leads there", at, targets[i])
			}
		}
	}
	return nil
}

// mountPath undoes the kernel's escapes.
var mountPath = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// isAt goes down to a place in a root folder by folders that are no links, and compares what is there with a file or folder of the
// host.
func isAt(root, target, source string) error {
	at, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("look at the container's files: %w", err)
	}
	defer func() { unix.Close(at) }()
	var have, want unix.Stat_t
	walked := ""
	for name := range strings.SplitSeq(strings.Trim(target, "/"), "/") {
		walked += "/" + name
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("look at %s in the container: %w", walked, err)
		}
		unix.Close(at)
		at = next
		if err := unix.Fstat(at, &have); err != nil {
			return fmt.Errorf("look at %s in the container: %w", walked, err)
		}
		if have.Mode&unix.S_IFMT == unix.S_IFLNK {
			return fmt.Errorf("the image has a link at %s, where the task's share is mounted (%s): use an image with a folder or file there, or with nothing", walked, target)
		}
	}
	if err := unix.Stat(source, &want); err != nil {
		return fmt.Errorf("look at %s: %w", source, err)
	}
	if have.Dev != want.Dev || have.Ino != want.Ino {
		return fmt.Errorf("something else is mounted at %s, where the task's share is: leave out the mount that a link in the image leads there", target)
	}
	return nil
}

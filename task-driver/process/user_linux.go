package process

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// ownSession makes the command the leader of a session, by which it and its children are found.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr.Setsid = true }

// endWithParent ends a process whose supervisor is killed: its exit result is lost, and the task is started anew.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL }

// setUser has the command run as the user of a spec, see credential.
func setUser(cmd *exec.Cmd, spec string) (err error) {
	cmd.SysProcAttr.Credential, err = credential(spec)
	return err
}

// credential turns "name", "uid", "name:group" or "uid:gid" into ids. It returns nil when the driver already runs
// as that user.
func credential(spec string) (*syscall.Credential, error) {
	name, groupName, withGroup := strings.Cut(spec, ":")
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return nil, fmt.Errorf("user %q is not known on this node: write a user that exists there, or leave user out", name)
		}
	}
	gidText := u.Gid
	if withGroup {
		g, err := user.LookupGroup(groupName)
		if err != nil {
			if g, err = user.LookupGroupId(groupName); err != nil {
				return nil, fmt.Errorf("group %q is not known on this node: write a group that exists there, or leave it out", groupName)
			}
		}
		gidText = g.Gid
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("read uid of %s: %w", name, err)
	}
	gid, err := strconv.ParseUint(gidText, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("read gid of %s: %w", name, err)
	}
	if os.Geteuid() == int(uid) && os.Getegid() == int(gid) {
		return nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("user %q needs an agent that runs as root; this one has uid %d", name, os.Geteuid())
	}
	cred := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	groups, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("read groups of %s: %w", name, err)
	}
	for _, text := range groups {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read groups of %s: %w", name, err)
		}
		cred.Groups = append(cred.Groups, uint32(id))
	}
	return cred, nil
}

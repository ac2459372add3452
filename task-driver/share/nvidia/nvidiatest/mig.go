package nvidiatest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// mig is nvidia-smi's part for GPU instances, on one card.
func mig(c *Card, args []string) share.Output {
	if c.MIG != "Enabled" {
		return failed(6, "No MIG-enabled devices found.\n")
	}
	gi, onInstance := flag(args, "-gi")
	switch {
	case slices.Contains(args, "-lgip"):
		return said(lgip(c))
	case slices.Contains(args, "-lgipp"):
		return said(lgipp(c))
	case slices.Contains(args, "-lgi"):
		return lgi(c)
	case slices.Contains(args, "-cgi"):
		what, _ := flag(args, "-cgi")
		return create(c, what, slices.Contains(args, "-C"))
	case slices.Contains(args, "-dci") && onInstance:
		return destroyCompute(c, number(gi))
	case slices.Contains(args, "-dgi") && onInstance:
		return destroy(c, number(gi))
	}
	return failed(2, "Invalid combination of input arguments.\n")
}

func lgip(c *Card) string {
	var out strings.Builder
	rule := "+" + strings.Repeat("-", 77) + "+\n"
	out.WriteString(rule + "| GPU instance profiles:                                                      |\n" +
		"| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |\n" +
		"|                              Free/Total   GiB              CE    JPEG  OFA  |\n" +
		"|=============================================================================|\n")
	for _, p := range c.Profiles {
		free := min(len(c.places(p)), p.Total)
		fmt.Fprintf(&out, "|%4d  MIG %-13s %3d  %4d/%d     %7s       No    %3d     1     0   |\n", c.Index, p.Name, p.ID, free, p.Total, p.GiB, p.SMs)
		out.WriteString("|                                                             1     1     0   |\n" + rule)
	}
	return out.String()
}

func lgipp(c *Card) string {
	var out strings.Builder
	for _, p := range c.Profiles {
		word := "Placements:"
		if len(p.Starts) == 1 {
			word = "Placement :"
		}
		fmt.Fprintf(&out, "GPU %2d Profile ID %2d %s {%s}:%d\n", c.Index, p.ID, word, strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Starts), " ", ","), "[]"), p.Size)
	}
	return out.String()
}

func lgi(c *Card) share.Output {
	if len(c.Instances) == 0 {
		return failed(6, "No GPU instances found: Not Found\n")
	}
	var out strings.Builder
	rule := "+-------------------------------------------------------+\n"
	out.WriteString(rule + "| GPU instances:                                        |\n" +
		"| GPU   Name             Profile  Instance   Placement  |\n" +
		"|                          ID       ID       Start:Size |\n" +
		"|=======================================================|\n")
	for _, in := range c.Instances {
		p := c.profile(in.Profile)
		fmt.Fprintf(&out, "|%4d  MIG %-15s %3d      %3d         %2d:%-2d    |\n", c.Index, p.Name, p.ID, in.ID, in.Start, p.Size)
		out.WriteString(rule)
	}
	return said(out.String())
}

// create makes a GPU instance "<profile>[:<start>]".
func create(c *Card, what string, compute bool) share.Output {
	id, start, placed := strings.Cut(what, ":")
	p := c.profile(number(id))
	refuse := func(why string) share.Output {
		return failed(255, fmt.Sprintf("Unable to create a GPU instance on GPU %2d using profile %s: %s\nFailed to create GPU instances: %s\n", c.Index, id, why, why))
	}
	free := c.places(p)
	switch {
	case p.ID < 0:
		return refuse("Invalid Argument")
	case c.Busy:
		return refuse("In use by another client")
	case placed && !slices.Contains(p.Starts, number(start)):
		return refuse("Invalid Argument")
	case len(free) == 0, placed && !slices.Contains(free, number(start)):
		return refuse("Insufficient Resources")
	}
	in := Instance{ID: c.take(), Profile: p.ID, Start: free[0], Compute: compute}
	if placed {
		in.Start = number(start)
	}
	out := fmt.Sprintf("Successfully created GPU instance ID %2d on GPU %2d using profile MIG %s (ID %2d)\n", in.ID, c.Index, p.Name, p.ID)
	if compute && c.NoCompute > 0 {
		c.NoCompute--
		in.Compute = false
		c.Instances = append(c.Instances, in)
		return failed(255, out+fmt.Sprintf("Unable to create a compute instance on GPU %2d GPU instance ID %2d using profile 0: Insufficient Resources\nFailed to create compute instances: Insufficient Resources\n", c.Index, in.ID))
	}
	c.Instances = append(c.Instances, in)
	if compute {
		out += fmt.Sprintf("Successfully created compute instance ID  0 on GPU %2d GPU instance ID %2d using profile MIG %s (ID  0)\n", c.Index, in.ID, p.Name)
	}
	return said(out)
}

func (c *Card) instance(id int) int {
	return slices.IndexFunc(c.Instances, func(in Instance) bool { return in.ID == id })
}

// held tells whether a process is on the instance.
func (c *Card) held(id int) bool {
	return c.Busy || slices.ContainsFunc(c.Clients, func(p Client) bool { return p.GI != nil && *p.GI == id })
}

func destroyCompute(c *Card, id int) share.Output {
	at := c.instance(id)
	switch {
	case at < 0 || !c.Instances[at].Compute:
		return failed(6, "No compute instances found: Not Found\n")
	case c.held(id):
		return failed(19, fmt.Sprintf("Unable to destroy compute instance ID  0 from GPU %2d GPU instance ID %2d: In use by another client\nFailed to destroy compute instances: In use by another client\n", c.Index, id))
	}
	c.Instances[at].Compute = false
	return said(fmt.Sprintf("Successfully destroyed compute instance ID  0 from GPU %2d GPU instance ID %2d\n", c.Index, id))
}

func destroy(c *Card, id int) share.Output {
	at := c.instance(id)
	switch {
	case at < 0:
		return failed(6, "No GPU instances found: Not Found\n")
	case c.held(id) || c.Instances[at].Compute:
		return failed(19, fmt.Sprintf("Unable to destroy GPU instance ID %2d from GPU %2d: In use by another client\nFailed to destroy GPU instances: In use by another client\n", id, c.Index))
	}
	c.Instances = slices.Delete(c.Instances, at, at+1)
	return said(fmt.Sprintf("Successfully destroyed GPU instance ID %2d from GPU %2d\n", id, c.Index))
}

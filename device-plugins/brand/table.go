package brand

import "github.com/heteroflow/heteroflow/device-plugins/toolout"

// Table reads a boxed table in the manner of nvidia-smi, whose columns several makers have taken over by name. key is the
// column of the index, which the column of utilisation is named after. more reads what is the tool's own.
func (r *Reading) Table(out, key string, more func(c *Card, row toolout.Record)) {
	for row := range toolout.Boxed(out, key) {
		index := toolout.Whole(row[key])
		if index == nil || !row.Has("Name", "Memory-Usage") {
			continue
		}
		c := r.At(*index)
		c.Name, c.PCI = row.First("Name"), toolout.PCI(row["Bus-Id"])
		used, total := toolout.Usage(row["Memory-Usage"])
		c.MemoryUsedMiB, c.MemoryMiB = toolout.MiB(used, ""), toolout.MiB(total, "")
		power, limit := toolout.Usage(row["Pwr:Usage/Cap"])
		c.PowerW, c.PowerLimitW = toolout.Watts(power), toolout.Watts(limit)
		c.UtilizationPct, c.TemperatureC = toolout.Percent(row.First(key+"-Util", "Util")), toolout.Celsius(row["Temp"])
		c.More.FanPct = toolout.Percent(row["Fan"])
		more(c, row)
	}
}

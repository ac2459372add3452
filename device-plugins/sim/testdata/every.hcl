seed    = 1
control = "control.hcl"

card "nvidia" {
  model     = "A100-SXM4-80GB"
  count     = 2
  memory    = "80GiB"
  modes     = ["mps", "mig"]
  numa_node = 0
}
card "mthreads" {
  model  = "MTT S4000"
  memory = "48GiB"
}
card "hygon" {
  model  = "K100_AI"
  memory = "64GiB"
}
card "cambricon" {
  model  = "MLU590"
  memory = "80GB"
}
card "biren" {
  model  = "BR106"
  memory = "32GiB"
}
card "ascend" {
  model  = "910B3"
  count  = 2
  memory = "64GiB"
}
card "kunlunxin" {
  model  = "P800"
  memory = "96GiB"
}
card "amd" {
  model = "MI308X"
}
card "metax" {
  model  = "MetaX C500"
  memory = "64GiB"
}
card "iluvatar" {
  model  = "BI-V150"
  memory = "32GiB"
}
card "enflame" {
  model  = "S60"
  memory = "48GiB"
}
card "intel" {
  model  = "Arc B580"
  memory = "12GiB"
}

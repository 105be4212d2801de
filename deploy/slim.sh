# In an image's build stage, when /opt/lengnuan is installed: list what it holds, then take away what nothing there uses.
set -eu
packages=$(/opt/lengnuan/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# The list first, because its tool reads the packages' own records. It lives outside of what goes into the image.
python3 -m venv /opt/sbom
/opt/sbom/bin/pip install --no-cache-dir --quiet cyclonedx-bom==7.5.0
/opt/sbom/bin/cyclonedx-py environment --output-reproducible --output-format JSON \
    --output-file /opt/lengnuan/sbom.json /opt/lengnuan/bin/python

# OpenVINO's other devices and model formats; bundles are ONNX, and this image runs them on the CPU.
rm -rf "$packages"/openvino/include "$packages"/openvino/libs/cache.json
for part in intel_gpu_plugin intel_npu_plugin tensorflow_frontend tensorflow_lite_frontend pytorch_frontend \
    paddle_frontend gguf_frontend jax_frontend; do
    rm -f "$packages"/openvino/libs/libopenvino_"$part".so*
done
# ONNX Runtime's C library, of which the Python module has its own copy, and its tools for other people's models.
rm -f "$packages"/onnxruntime/capi/libonnxruntime.so.*
rm -rf "$packages"/onnxruntime/transformers "$packages"/onnxruntime/quantization "$packages"/onnxruntime/tools
find "$packages" -type d -name tests -prune -exec rm -rf {} +
/opt/lengnuan/bin/pip uninstall --yes --quiet setuptools pip || /opt/lengnuan/bin/pip uninstall --yes --quiet pip

# Brings lavapipe, Mesa's Vulkan driver for processors, in a version with VK_KHR_cooperative_matrix, beside whatever the machine has;
# and the SPIR-V validator. Source it; `suits_lavapipe` says whether this machine can have them, or why not, and `bring_lavapipe` sets
# KP_LAVAPIPE, a command that runs a program with them, and SPIRV_VAL, or fails saying why.
#
# The packages are those of newer Debian releases, unpacked and not installed: a program runs with their libraries by their own
# dynamic linker. Nothing of the machine changes.

lavapipe_home=$PWD/target/ci-tools/lavapipe
spirv_home=$PWD/target/ci-tools/spirv-tools

debian_keys=/usr/share/keyrings/debian-archive-keyring.gpg

# Where this machine has Debian's packages from; nothing on another system.
archive() {
    sed -n 's/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1
}

suits_lavapipe() {
    [ "$(uname -m)" = x86_64 ] || { echo "it is brought for x86_64 only"; return 1; }
    [ -n "$(archive)" ] && [ -e "$debian_keys" ] || { echo "this is no Debian whose packages could be unpacked"; return 1; }
}

# unpack HOME SUITE EXTRA-SUITE PACKAGE...: resolves packages of a suite as if nothing were installed, and unpacks them in HOME.
unpack() {
    local home=$1 suite=$2 extra=$3
    shift 3
    local archive
    archive=$(archive)
    rm -rf "$home"
    mkdir -p "$home"/{lists/partial,cache/archives/partial,root}
    : >"$home/status"
    printf "deb [signed-by=$debian_keys] $archive %s main\n" "$suite" ${extra:+"$extra"} >"$home/sources.list"
    cat >"$home/apt.conf" <<CONF
Dir::State::Lists "$home/lists";
Dir::State::status "$home/status";
Dir::Cache "$home/cache";
Dir::Etc::SourceList "$home/sources.list";
Dir::Etc::SourceParts "/dev/null";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
CONF
    APT_CONFIG=$home/apt.conf apt-get -qq update >"$home/log" 2>&1 &&
        APT_CONFIG=$home/apt.conf apt-get -qq -y ${extra:+-t "$extra"} --download-only install "$@" >>"$home/log" 2>&1 ||
        { echo "packages of $suite do not come: $(grep '^E:' "$home/log" | head -n 1)"; return 1; }
    local package
    for package in "$home"/cache/archives/*.deb; do
        dpkg -x "$package" "$home/root" || return 1
    done
    rm -rf "$home/cache" "$home/lists"
}

# linked HOME PROGRAM: a command that runs PROGRAM with HOME's libraries.
linked() {
    echo "$1/root/usr/lib64/ld-linux-x86-64.so.2 --library-path $1/root/usr/lib/x86_64-linux-gnu $2"
}

bring_lavapipe() {
    local driver=$lavapipe_home/root/usr/lib/x86_64-linux-gnu/libvulkan_lvp.so
    [ -e "$driver" ] ||
        unpack "$lavapipe_home" trixie trixie-backports mesa-vulkan-drivers libvulkan1 vulkan-validationlayers || return 1
    [ -e "$spirv_home/root/usr/bin/spirv-val" ] || unpack "$spirv_home" sid "" spirv-tools || return 1
    printf '{ "file_format_version": "1.0.1", "ICD": { "api_version": "1.4.0", "library_path": "%s" } }\n' "$driver" \
        >"$lavapipe_home/driver.json"
    KP_LAVAPIPE=$(linked "$lavapipe_home" "")
    SPIRV_VAL=$(linked "$spirv_home" "$spirv_home/root/usr/bin/spirv-val")
    # Mesa would keep compiled shaders in the user's home; kp its pipeline caches.
    export VK_DRIVER_FILES=$lavapipe_home/driver.json MESA_SHADER_CACHE_DISABLE=true
    export VK_ADD_LAYER_PATH=$lavapipe_home/root/usr/share/vulkan/explicit_layer.d
}

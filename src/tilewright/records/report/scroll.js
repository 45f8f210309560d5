// Marks each table with columns beyond its right edge: a line above it says so, and the edge fades until it is reached.
for (const box of document.querySelectorAll(".scroll")) {
  const hint = document.createElement("p");
  hint.className = "beyond";
  hint.textContent = "More columns on the right: scroll →";
  box.before(hint);
  const update = () => {
    hint.hidden = box.scrollWidth <= box.clientWidth + 1;
    box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  box.addEventListener("scroll", update, { passive: true });
  new ResizeObserver(update).observe(box); // also when a hidden view is opened
}
